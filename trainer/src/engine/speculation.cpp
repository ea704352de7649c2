#include "engine/speculation.hpp"

#include "unishard/format/error.hpp"

#include "engine/step_constants.hpp"
#include "optimizer/host_update.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <utility>

namespace unishard::trainer::detail {
namespace {

/// Reserves the blocks that drafts of all units take in files, and returns their bytes.
std::int64_t reserve_blocks(const ModelState& model) {
  std::map<BlockFile*, std::size_t> blocks;
  for (const UnitRecord& unit : model.units) {
    if (!unit.flat->is_trained()) continue;
    for (const StateArray& array : unit.flat->arrays().drafted())
      if (array.is_in_file()) blocks[&array.file()->file()] += array.file()->blocks();
  }
  std::uint64_t bytes = 0;
  for (const auto& [file, count] : blocks) {
    file->make_free(count);
    bytes += count * file->block_bytes();
  }
  return static_cast<std::int64_t>(bytes);
}

std::map<const FlatUnit*, UnitArrays> make_spares(const ModelState& model) {
  std::map<const FlatUnit*, UnitArrays> spares;
  for (const UnitRecord& unit : model.units) {
    if (!unit.flat->is_trained()) continue;
    const UnitArrays arrays = unit.flat->arrays();
    if (arrays.can_be_drafted() && arrays.master.is_pinned())
      spares.emplace(unit.flat, arrays.make_spare(unit.flat->placement().device));
  }
  return spares;
}

}  // namespace

/// The drafts of one step, and the thread that updates them.
class Speculation::Drafts {
 public:
  Drafts(const TrainingState& state, TileUpdate update)
      : pipeline_(state, update.runtime.trace()), update_(std::move(update)) {}
  ~Drafts() { is_dropped_ = true; }
  Drafts(const Drafts&) = delete;
  Drafts& operator=(const Drafts&) = delete;

  float scale() const { return update_.scale; }
  bool has(const FlatUnit& unit) const {
    return std::ranges::any_of(drafts_,
                               [&](const Draft& each) { return each.unit->flat == &unit; });
  }

  /// Updates a draft of `unit` on the thread. The last tiles of a unit are updated when the next
  /// unit is read.
  void start(const UnitRecord& unit, UnitArrays arrays) {
    const UnitArrays& draft = drafts_.emplace_back(&unit, std::move(arrays)).arrays;
    tasks_.push([this, &unit, &draft] {
      const at::NoGradGuard no_grad;
      if (is_dropped_) return;
      if (draft.gradients.is_pinned()) update_.runtime.finish(Stream::Copy);  // it brings them
      pipeline_.add(unit, draft);
      const TilePipeline::UpdateTile update = traced();
      while (pipeline_.has_unread() && !is_dropped_) pipeline_.advance(update);
    });
  }

  /// Returns when all drafts are written.
  /// Throws: what a read or a write has thrown.
  void finish() {
    tasks_.push([this] {
      const at::NoGradGuard no_grad;
      pipeline_.run(traced());
    });
    tasks_.wait(tasks_.pushed());
  }

  /// Makes the drafts the state. Pre: finish() has returned.
  UnitSet take() const {
    UnitSet units;
    for (const Draft& each : drafts_) {
      each.unit->flat->arrays().take(each.arrays);
      units.insert(each.unit);
    }
    return units;
  }

 private:
  /// Returns the update of a tile, which the trace gets.
  TilePipeline::UpdateTile traced() {
    return [this](Tile& tile) {
      const TraceScope scope(update_.runtime.trace(), "updates ahead",
                             "update " + tile.flat().name());
      update_(tile);
    };
  }

  struct Draft {
    Draft(const UnitRecord* the_unit, UnitArrays the_arrays)
        : unit(the_unit), arrays(std::move(the_arrays)) {}
    const UnitRecord* unit;
    UnitArrays arrays;
  };

  TilePipeline pipeline_;
  TileUpdate update_;
  std::deque<Draft> drafts_;  ///< they stay where they are
  std::atomic<bool> is_dropped_ = false;
  TaskQueue tasks_;  ///< last: its thread uses the others
};

Speculation::Speculation(const TrainingState& state, Runtime& runtime)
    : state_(state),
      runtime_(runtime),
      bytes_in_files_(reserve_blocks(state.model)),
      spares_(make_spares(state.model)) {}

Speculation::~Speculation() = default;

std::int64_t Speculation::bytes_in_memory() const {
  std::int64_t bytes = 0;
  for (const auto& [unit, spare] : spares_) {
    bytes += spare.master.bytes_in_memory();
    for (const StateArray& state : spare.states) bytes += state.bytes_in_memory();
  }
  return bytes;
}

float Speculation::unclipped_scale() const { return gradient_scale(state_, 0); }

std::unique_ptr<Speculation::Drafts> Speculation::take_drafts() {
  const std::lock_guard lock(mutex_);
  return std::move(drafts_);
}

void Speculation::begin_step() {
  take_drafts().reset();
  if (!is_likely_) return;
  TileUpdate update = update_of_step(state_, runtime_, unclipped_scale());
  if (runtime_.device().is_cpu()) {
    update.on_host = [](const Rule& rule, const UpdateArrays& arrays) {
      update_on_host(rule, arrays);  // on one thread, because the others compute
    };
  }
  auto drafts = std::make_unique<Drafts>(state_, std::move(update));
  const std::lock_guard lock(mutex_);
  drafts_ = std::move(drafts);
}

void Speculation::hear(const FlatUnit& unit, Sums what) {
  const std::lock_guard lock(mutex_);
  if (!drafts_) return;
  if (what == Sums::Change) {
    // Files that are read must not be written.
    if (drafts_->has(unit)) drafts_.reset();
    return;
  }
  const UnitArrays arrays = unit.arrays();
  if (!arrays.can_be_drafted()) return;
  const auto spare = spares_.find(&unit);
  drafts_->start(*std::ranges::find(state_.model.units, &unit, &UnitRecord::flat),
                 arrays.draft(spare == spares_.end() ? UnitArrays() : spare->second));
}

UnitSet Speculation::settle(float scale) {
  const std::unique_ptr<Drafts> drafts = take_drafts();
  is_likely_ = scale == unclipped_scale();
  if (!drafts || !is_likely_) return {};
  try {
    drafts->finish();
  } catch (const std::exception&) {  // the update of the state meets it again
    return {};
  }
  return drafts->take();
}

void Speculation::drop() {
  take_drafts().reset();
  is_likely_ = false;
}

}  // namespace unishard::trainer::detail
