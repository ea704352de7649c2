#include "state/recomputed_units.hpp"

#include "state/flat_unit.hpp"

#include <utility>

namespace unishard::trainer::detail {
namespace {

/// Thread-local, because the forward of a unit has no parameter for it.
thread_local std::vector<FlatUnit*>* listed_units = nullptr;

}  // namespace

RecomputedScope::RecomputedScope(std::vector<FlatUnit*>& units)
    : outer_(std::exchange(listed_units, &units)) {}

RecomputedScope::~RecomputedScope() { listed_units = outer_; }

void count_if_recomputed(FlatUnit& unit) {
  if (!listed_units) return;
  listed_units->push_back(&unit);
  unit.begin_recomputed();
}

void end_recomputed(std::vector<FlatUnit*>& units) {
  for (FlatUnit* unit : std::exchange(units, {})) unit->end_recomputed();
}

}  // namespace unishard::trainer::detail
