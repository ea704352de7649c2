#include "engine/update.hpp"

#include "unishard/trainer/memory_plan.hpp"

#include "engine/step_constants.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>
#include <unordered_set>

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

/// Publishes units in the same order on every rank, though each has them ready in an order of its
/// own. Those that are gathered from files are the last, because all is written back before.
class PublicationOrder {
 public:
  PublicationOrder(const ModelState& model, Publication& publication) : publication_(publication) {
    for (const UnitRecord& unit : model.units)
      if (!unit.parameters.empty()) order_.push_back(unit.flat);
    std::ranges::stable_partition(
        order_, [](const FlatUnit* unit) { return !unit->is_gathered_from_file(); });
  }

  /// Says that `unit` is updated. Those that are gathered from files wait for all_written().
  void updated(const FlatUnit& unit) {
    ready_.insert(&unit);
    while (next_ < order_.size() && ready_.contains(order_[next_]) &&
           !order_[next_]->is_gathered_from_file())
      publication_.start(*order_[next_++], Changed::Master);
  }
  void all_written() {
    while (next_ < order_.size()) publication_.start(*order_[next_++], Changed::Master);
    publication_.finish();
  }

 private:
  Publication& publication_;
  std::vector<FlatUnit*> order_;
  std::unordered_set<const FlatUnit*> ready_;
  std::size_t next_ = 0;
};

}  // namespace

void update_tiles(const TileUpdate& update, const UnitSet& done) {
  const ModelState& model = update.state.model;
  Publication publication = publication_of(update.state.config);
  PublicationOrder order(model, publication);
  for (const UnitRecord* unit : done) order.updated(*unit->flat);
  TilePipeline pipeline(update.state, update.runtime.trace());
  for (const UnitRecord& unit : model.units)
    if (!unit.parameters.empty() && !done.contains(&unit)) pipeline.add(unit, unit.flat->arrays());
  pipeline.run([&](const Tile& tile) {
    update.runtime.run(Stream::Compute, "update " + tile.flat().name(), [&] { update(tile); });
    if (tile.is_last) order.updated(tile.flat());
  });
  order.all_written();
}

namespace {

/// Gives the parameters of a unit, or what they are gathered from, the rounding of its master.
void round_master(Runtime& runtime, const FlatUnit& unit) {
  if (!unit.is_trained()) return;
  const UnitArrays all = unit.arrays();
  if (!all.rounded.defined()) return;
  const std::int64_t elements = all.master.elements();
  const std::int64_t most = std::min(unit.store().most_at_once(elements), kElementsOfHostUpdate);
  for (std::int64_t begin = 0; begin < elements; begin += most)
    round_weights(runtime, all, begin, all.master.values(begin, std::min(most, elements - begin)));
}

}  // namespace

std::int64_t update_units(TrainingState& state, Runtime& runtime, double gradient_norm,
                          Speculation* speculation) {
  const float scale = gradient_scale(state, gradient_norm);
  UnitSet done;
  if (speculation) done = speculation->settle(scale);
  for (const UnitRecord* unit : done)
    if (!unit->flat->resident_shard().is_in_file()) round_master(runtime, *unit->flat);
  update_tiles(update_of_step(state, runtime, scale), done);
  return static_cast<std::int64_t>(done.size());
}

void publish_units(TrainingState& state, Runtime& runtime, Changed changed) {
  Publication publication = publication_of(state.config);
  for (const UnitRecord& unit : state.model.units) {
    round_master(runtime, *unit.flat);
    publication.start(*unit.flat, changed);
  }
  publication.finish();
}

}  // namespace unishard::trainer::detail
