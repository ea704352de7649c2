#include "engine/tile_update.hpp"

#include "engine/step_constants.hpp"
#include "optimizer/parallel_update.hpp"
#include "runtime/device_arrays.hpp"

#include <algorithm>

namespace unishard::trainer::detail {
namespace {

/// Returns the part of what is rounded from the weights that a device's update writes itself;
/// undefined where UnitArrays::round() does it.
at::Tensor rounded_with_update(const Tile& tile) {
  const StateArray& rounded = tile.arrays->rounded;
  if (tile.weights.is_cpu() || !rounded.defined() || rounded.is_in_file()) return {};
  const at::Tensor& all = rounded.tensor();
  const bool has_16_bits = all.scalar_type() == at::kBFloat16 || all.scalar_type() == at::kHalf;
  const bool is_there = all.device() == tile.weights.device();
  return has_16_bits && is_there ? all.narrow(0, tile.begin, tile.count) : at::Tensor();
}

}  // namespace

ElementRange range_in(const Tile& tile, const ParameterRecord& parameter) {
  const UnitLayout& layout = tile.flat().layout();
  const std::uint64_t size = layout.held(parameter.slot).size();
  if (size == 0) return {};  // another rank's; it has no offset here
  const std::uint64_t offset = layout.held_offset(parameter.slot);
  const auto first = static_cast<std::uint64_t>(tile.begin);
  const ElementRange range{std::max(offset, first),
                           std::min(offset + size, first + static_cast<std::uint64_t>(tile.count))};
  return range.begin < range.end ? range : ElementRange{};
}

at::Tensor part_of(const at::Tensor& tensor, const Tile& tile, ElementRange range) {
  return tensor.narrow(0, static_cast<std::int64_t>(range.begin) - tile.begin,
                       static_cast<std::int64_t>(range.size()));
}

TileUpdate update_of_step(const TrainingState& state, Runtime& runtime, float scale) {
  return {
      .state = state,
      .optimizer = [&state](const ParameterRecord& parameter) -> const Optimizer& {
        return state.optimizer_of(parameter);
      },
      .runtime = runtime,
      .on_host = update_in_parallel,
      .scale = scale,
      .hyper =
          [&state](const ParameterRecord& parameter) { return hyper_of_step(state, parameter); }};
}

void TileUpdate::add_segment(const ParameterRecord& parameter, const Tile& tile,
                             std::vector<UpdateSegment>& segments) const {
  const ElementRange range = range_in(tile, parameter);
  if (range.empty()) return;
  const UpdateSegment own{.begin = static_cast<std::int64_t>(range.begin) - tile.begin,
                          .count = static_cast<std::int64_t>(range.size()),
                          .optimizer = &optimizer(parameter),
                          .hyper = hyper(parameter)};
  if (!segments.empty()) {
    UpdateSegment& last = segments.back();
    if (last.begin + last.count == own.begin && last.optimizer == own.optimizer &&
        last.hyper == own.hyper) {
      last.count += own.count;
      return;
    }
  }
  segments.push_back(own);
}

void TileUpdate::update(std::span<const UpdateSegment> segments, const Tile& tile,
                        const at::Tensor& rounded) const {
  if (segments.empty()) return;
  const UpdateTensors tensors{.weights = tile.weights,
                              .gradients = tile.gradients.to(tile.weights.device()),
                              .states = tile.states,
                              .rounded = rounded};
  if (tile.weights.is_cpu()) {
    update_segments(rules_of(segments, state.step + 1, scale), tensors, on_host);
  } else {
    runtime.update(segments, state.step + 1, scale, tensors);
  }
}

void TileUpdate::update_some(const Tile& tile,
                             const std::function<bool(const ParameterRecord&)>& which) const {
  std::vector<UpdateSegment> segments;
  for (const std::size_t index : tile.unit->parameters) {
    const ParameterRecord& parameter = state.model.parameters[index];
    if (which(parameter)) add_segment(parameter, tile, segments);
  }
  update(segments, tile, at::Tensor());
}

void TileUpdate::operator()(const Tile& tile) const {
  for (std::size_t i = 0; i < tile.previous.size(); ++i)
    (i == 0 ? tile.weights : tile.states[i - 1]).copy_(tile.previous[i]);
  std::vector<UpdateSegment> segments;
  for (const std::size_t index : tile.unit->parameters)
    add_segment(state.model.parameters[index], tile, segments);
  const at::Tensor rounded = rounded_with_update(tile);
  update(segments, tile, rounded);
  if (!rounded.defined() && !tile.arrays->rounded.is_in_file())
    round_weights(runtime, *tile.arrays, tile.begin, tile.weights);
}

void round_weights(Runtime& runtime, const UnitArrays& arrays, std::int64_t begin,
                   const at::Tensor& weights) {
  const StateArray& rounded = arrays.rounded;
  const bool goes_to_device =
      rounded.defined() && !rounded.is_in_file() && weights.is_cpu() && !rounded.tensor().is_cpu();
  if (goes_to_device && rounded.type() == arrays.stored) {
    runtime.send(weights, rounded.tensor().narrow(0, begin, weights.numel()));
  } else {
    arrays.round(begin, weights);
  }
}

}  // namespace unishard::trainer::detail
