#pragma once
// The arrays that an update of a unit reads and writes: what this rank holds of the unit.
#include "state/state_array.hpp"

#include <cstdint>
#include <vector>

namespace unishard::trainer::detail {

/// Handles: copies are the same arrays. All have the same number of elements.
struct UnitArrays {
  StateArray gradients = {}, master = {};  ///< float32
  std::vector<StateArray> states = {};     ///< float32
  StateArray rounded = {};  ///< gets the rounding of the master; undefined where nothing does
  at::ScalarType stored = at::kFloat;  ///< what the master is rounded to
  /// The master and the states that a draft in memory is made of: its own get their values before
  /// the update.
  std::vector<StateArray> previous = {};

  /// Returns true when the master and the states are in files, or all of them in pinned memory.
  bool can_be_drafted() const;
  /// Returns the arrays that a draft has of its own; none unless can_be_drafted().
  std::vector<StateArray> drafted() const;
  /// Returns new arrays in pinned memory, which have room for those that are drafted.
  /// Pre: these are pinned.
  UnitArrays make_spare(at::Device device) const;
  /// Returns arrays that begin with these values. An update of them leaves these as they are; the
  /// gradients are the same array. `spare` has the memory of a draft of pinned arrays. A draft has
  /// no `rounded` that is in memory.
  /// Pre: can_be_drafted().
  UnitArrays draft(const UnitArrays& spare) const;
  /// Takes over what an update has made of a draft of these arrays, which becomes a spare.
  void take(const UnitArrays& draft) const;

  /// Gives `rounded` the rounding of `values`, which are elements of the master from `begin` on.
  void round(std::int64_t begin, const at::Tensor& values) const;
};

}  // namespace unishard::trainer::detail
