#pragma once
// Converts element types into each other, with the same rounding as torch's `.to()`.
// Thread safety: pure functions.
#include "unishard/format/dtype.hpp"

#include <cstddef>
#include <span>

namespace unishard::converters {

/// Returns true when convert_elements() supports the pair: from any type but the complex ones to
/// float64, float32, float16 or bfloat16, and from every type to itself.
bool convertible(DType from, DType to);

/// Converts the elements of `in` (of type `from`) to `out` (of type `to`): rounds to nearest, ties
/// to even; NaN stays NaN. As in torch, everything but float64 is converted through float32.
/// Returns whether a finite element became infinite, because it is beyond the range of `to`.
/// Pre: both spans hold the same number of elements and do not overlap.
/// Throws: Unsupported when not convertible().
bool convert_elements(DType from, std::span<const std::byte> in, DType to,
                      std::span<std::byte> out);

}  // namespace unishard::converters
