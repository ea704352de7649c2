#include "engine/update.hpp"

#include "engine/step_constants.hpp"
#include "engine/tile_pipeline.hpp"
#include "optimizer/parallel_update.hpp"
#include "runtime/device_arrays.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>

namespace unishard::trainer::detail {
namespace {

/// Publishes units on the communication stream, at most `limit` elements at a time.
class Publication {
 public:
  explicit Publication(std::int64_t limit) : limit_(limit) {}

  void start(FlatUnit& unit, Changed changed) {
    unit.start_publish(changed);
    elements_ += elements_of(unit);
    started_.push_back(&unit);
    while (elements_ > limit_) finish_first();
  }
  void finish() {
    while (!started_.empty()) finish_first();
  }

 private:
  /// Frozen parameters are left out, because updates do not share them.
  static std::int64_t elements_of(const FlatUnit& unit) { return unit.layout().padded; }
  void finish_first() {
    started_.front()->finish_publish();
    elements_ -= elements_of(*started_.front());
    started_.pop_front();
  }

  std::int64_t limit_;
  std::int64_t elements_ = 0;
  std::deque<FlatUnit*> started_;
};

Publication publication_of(const Config& config) {
  return Publication(config.zero.overlap_comm ? config.zero.allgather_bucket_size : 0);
}

/// The constants of an update.
struct Update {
  TrainingState& state;
  Runtime& runtime;
  float scale;  ///< of the gradients
};

/// Returns elements [begin, end) of a flat array of which `tensor` are those from `first` on.
at::Tensor cut(const at::Tensor& tensor, std::int64_t first, ElementRange range) {
  return tensor.narrow(0, static_cast<std::int64_t>(range.begin) - first,
                       static_cast<std::int64_t>(range.size()));
}

/// Updates what `tile` has of a parameter, where its weights are.
void update_parameter(const Update& update, const ParameterRecord& parameter, const Tile& tile,
                      const at::Tensor& gradients) {
  const UnitLayout& layout = tile.flat().layout();
  const std::uint64_t size = layout.held(parameter.slot).size();
  if (size == 0) return;
  const std::uint64_t offset = layout.held_offset(parameter.slot);
  const auto first = static_cast<std::uint64_t>(tile.begin);
  const ElementRange range{std::max(offset, first),
                           std::min(offset + size, first + static_cast<std::uint64_t>(tile.count))};
  if (range.begin >= range.end) return;
  const TrainingState& state = update.state;
  const Hyper hyper = hyper_of_step(state, parameter);
  UpdateTensors tensors{.weights = cut(tile.weights, tile.begin, range),
                        .gradients = cut(gradients, tile.begin, range),
                        .states = {}};
  for (const at::Tensor& each : tile.states) tensors.states.push_back(cut(each, tile.begin, range));
  if (tile.weights.device() == update.runtime.device()) {
    update.runtime.update(*state.optimizer, hyper, state.step + 1, update.scale, tensors);
  } else {
    update_in_parallel(rule_for(*state.optimizer, hyper, state.step + 1, update.scale),
                       arrays_of(tensors, at::kCPU));
  }
}

void update_tile(const Update& update, const Tile& tile) {
  const at::Tensor gradients = tile.gradients.to(tile.weights.device());
  for (const std::size_t index : tile.unit->parameters)
    update_parameter(update, update.state.model.parameters[index], tile, gradients);
  if (!tile.flat().resident_shard().is_in_file())
    tile.flat().round_master(tile.begin, tile.weights);
}

std::int64_t elements_of(const ModelState& model) {
  std::int64_t elements = 0;
  for (const UnitRecord& unit : model.units) elements += unit.flat->layout().length();
  return elements;
}

/// Returns how many elements of arrays in files are updated at a time: as many as are read and
/// written fast, fewer for a small model, and whole blocks, also of arrays of 16 bits.
std::int64_t tile_elements(const TrainingState& state) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20, kLeast = std::int64_t{1} << 18;
  const Config& config = state.config;
  const auto bytes = whole_pages(static_cast<std::uint64_t>(config.aio.block_size));
  const auto block = static_cast<std::int64_t>(bytes / 2);  // elements of 16 bits
  const std::int64_t wanted = std::clamp(elements_of(state.model) / 512, kLeast, kMost);
  return std::max(block, std::min(wanted, config.zero.sub_group_size) / block * block);
}

}  // namespace

void update_units(TrainingState& state, Runtime& runtime, double gradient_norm) {
  const Update update{
      .state = state, .runtime = runtime, .scale = gradient_scale(state, gradient_norm)};
  Publication publication = publication_of(state.config);
  TilePipeline pipeline(tile_elements(state), state.config.offload_optimizer.buffer_count);
  for (const UnitRecord& unit : state.model.units)
    if (!unit.parameters.empty()) pipeline.add(unit);
  std::vector<FlatUnit*> unpublished;  // what they are gathered from is being written
  pipeline.run([&](const Tile& tile) {
    FlatUnit& unit = tile.flat();
    runtime.run(Stream::Compute, "update " + unit.name(), [&] { update_tile(update, tile); });
    if (!tile.is_last) return;
    if (unit.is_gathered_from_file()) {
      unpublished.push_back(&unit);
    } else {
      publication.start(unit, Changed::Master);
    }
  });
  for (FlatUnit* unit : unpublished) publication.start(*unit, Changed::Master);
  publication.finish();
}

void publish_units(TrainingState& state, Changed changed) {
  Publication publication = publication_of(state.config);
  for (const UnitRecord& unit : state.model.units) {
    unit.flat->round_master();
    publication.start(*unit.flat, changed);
  }
  publication.finish();
}

}  // namespace unishard::trainer::detail
