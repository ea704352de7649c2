#include "state/gather_schedule.hpp"

#include <algorithm>
#include <numeric>
#include <span>

namespace unishard::trainer::detail {

void GatherSchedule::begin(Pass pass) {
  pass_ = pass;
  used_.clear();
  follows_ = !recorded_[static_cast<std::size_t>(pass)].empty();
}

void GatherSchedule::acquire(FlatUnit& unit) {
  const auto& recorded = recorded_[static_cast<std::size_t>(pass_)];
  follows_ = follows_ && used_.size() < recorded.size() && recorded[used_.size()] == &unit;
  used_.push_back(&unit);
  if (std::ranges::find(units_, &unit) == units_.end()) units_.push_back(&unit);
  unit.start_gather();
  prefetch();
  unit.finish_gather();
}

void GatherSchedule::prefetch() {
  if (!follows_) return;
  std::int64_t ahead = 0;
  for (const FlatUnit* unit : units_) {
    if (unit->is_arriving() && unit != used_.back()) ahead += unit->elements();
  }
  const std::span rest =
      std::span(recorded_[static_cast<std::size_t>(pass_)]).subspan(used_.size());
  for (FlatUnit* next : rest) {
    if (next->has_parameters()) continue;
    if (!may_prefetch(*next, ahead)) return;
    ahead += next->elements();
    next->start_gather();
  }
}

/// `ahead` elements are being gathered for units that come before.
bool GatherSchedule::may_prefetch(const FlatUnit& unit, std::int64_t ahead) const {
  if (limits_.prefetch == 0 || live() + unit.elements() > limits_.live) return false;
  return ahead == 0 || ahead + unit.elements() <= limits_.prefetch;
}

void GatherSchedule::release(FlatUnit& unit) {
  if (!is_needed_soon(unit)) unit.release();
}

bool GatherSchedule::is_needed_soon(const FlatUnit& unit) const {
  if (!follows_) return false;
  const std::span rest =
      std::span(recorded_[static_cast<std::size_t>(pass_)]).subspan(used_.size());
  const auto missing = std::ranges::find_if_not(rest, &FlatUnit::has_parameters);
  if (live() + (missing == rest.end() ? 0 : (*missing)->elements()) > limits_.live) return false;
  std::int64_t distance = 0;
  for (const FlatUnit* next : rest) {
    if (next == &unit) return distance <= limits_.reuse;
    distance += next->elements();
  }
  return false;
}

void GatherSchedule::end() { recorded_[static_cast<std::size_t>(pass_)] = std::move(used_); }

std::int64_t GatherSchedule::live() const {
  return std::accumulate(units_.begin(), units_.end(), std::int64_t{0},
                         [](std::int64_t sum, const FlatUnit* unit) {
                           return sum + (unit->has_parameters() ? unit->elements() : 0);
                         });
}

}  // namespace unishard::trainer::detail
