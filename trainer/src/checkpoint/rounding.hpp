#pragma once
// Checks at memory speed whether 16-bit values are the rounding of fp32 ones. A save checks every
// weight while training waits.
// Thread safety: pure functions.
#include "unishard/format/dtype.hpp"

#include <cstddef>
#include <span>

namespace unishard::trainer::detail {

/// Returns true when `stored` holds round_to_bfloat16() or round_to_float16() of each element of
/// `master`.
/// Pre: stored.size() == 2 * master.size(); dtype is BFloat16 or Float16.
bool is_rounding(std::span<const float> master, std::span<const std::byte> stored, DType dtype);

/// Returns true when all values are zeros or normal finite numbers, for which every implementation
/// of round-to-nearest-even gives the same result.
bool rounds_one_way(std::span<const float> values);

}  // namespace unishard::trainer::detail
