#pragma once
// Two runs of elements against each other. Pure.
#include "unishard/format/dtype.hpp"

#include <cstdint>
#include <optional>
#include <span>

namespace unishard::tools {

/// What differs between two runs of the same length and type. Indices count elements of the whole
/// tensor.
struct ElementDiff {
  std::uint64_t elements = 0;   ///< compared
  std::uint64_t differing = 0;  ///< with other bits
  std::uint64_t beyond =
      0;               ///< of these, further apart than the tolerance; without one, all of them
  double max_abs = 0;  ///< largest |a - b| of the differing; infinite where NaN meets a number
  std::uint64_t max_index = 0;  ///< where
  double a = 0, b = 0;          ///< the values there

  /// Folds `next`, a later run of the same tensor.
  void append(const ElementDiff& next);
};

/// `first_index` is the index of the first element. Without a tolerance every other bit counts, the
/// sign of zero and the payload of NaN too; with one, values count and two NaN are equal.
ElementDiff compare_elements(DType dtype, std::span<const std::byte> a,
                             std::span<const std::byte> b, std::uint64_t first_index,
                             const std::optional<double>& tolerance);

}  // namespace unishard::tools
