#pragma once
// Compares two sequences of elements.
// Thread safety: pure functions.
#include "unishard/format/dtype.hpp"

#include <cstdint>
#include <optional>
#include <span>

namespace unishard::tools {

/// Differences between two sequences of the same length and type. Indices count elements of the
/// whole tensor.
struct ElementDiff {
  std::uint64_t elements = 0;   ///< elements compared
  std::uint64_t differing = 0;  ///< elements with different bits
  /// Differing elements that are further apart than the tolerance; without a tolerance, all of
  /// them.
  std::uint64_t beyond = 0;
  /// Largest |a - b| of the differing elements; infinite when NaN meets a number.
  double max_abs = 0;
  std::uint64_t max_index = 0;  ///< index of that element
  double a = 0, b = 0;          ///< its values

  /// Adds the differences of a later sequence of the same tensor.
  void append(const ElementDiff& next);
};

/// Compares elements; `first_index` is the index of the first one. Without a tolerance every bit
/// counts, including the sign of zero and the payload of NaN. With a tolerance values count, and
/// NaN equals NaN.
/// Pre: both spans have the same size.
ElementDiff compare_elements(DType dtype, std::span<const std::byte> a,
                             std::span<const std::byte> b, std::uint64_t first_index,
                             const std::optional<double>& tolerance);

/// Compares elements of two floating-point types by their values, exactly: NaN equals NaN, and 0
/// equals -0. Without a tolerance, `beyond` counts all that differ.
/// Pre: both spans hold the same number of elements.
ElementDiff compare_widened(DType a_type, std::span<const std::byte> a, DType b_type,
                            std::span<const std::byte> b, std::uint64_t first_index,
                            const std::optional<double>& tolerance);

}  // namespace unishard::tools
