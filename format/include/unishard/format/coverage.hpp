#pragma once
// Checks that the fragments of a tensor, ranges and boxes mixed, hold each of its elements exactly
// once.
// Thread safety: pure functions.
#include "unishard/format/box.hpp"

#include <cstdint>
#include <optional>
#include <span>

namespace unishard {

/// What one fragment holds of its tensor: the box, or the range when there is no box.
struct HeldPart {
  ElementRange range;  ///< of a box: ElementMap::bounds()
  BoxView box;
};

/// Elements of a tensor that are missing or held twice.
struct CoverageFault {
  /// The first and the one behind the last such element. Without boxes, all of these elements are
  /// concerned, and others behind them may be.
  ElementRange range;
  bool is_missing = false;  ///< the first one is missing; else it is held twice
  bool is_exact = true;     ///< false: elements within `range` may be held once
};

/// Returns nullopt when `parts` hold each element of a tensor of this shape exactly once.
/// Pre: `parts` lie in the tensor and are sorted by the beginnings of their ranges.
/// Throws: Corrupt, beginning with `label`, when the boxes are cut along more than kCutAxesMax
/// axes; MemoryLimit. Complexity: O(n) for n ranges; O(n log n) with boxes, times 2 for each axis
/// that is cut.
std::optional<CoverageFault> find_coverage_fault(const Shape& shape,
                                                 std::span<const HeldPart> parts,
                                                 const std::string& label);

}  // namespace unishard
