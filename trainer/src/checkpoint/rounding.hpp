#pragma once
// Checks at memory speed whether 16-bit values are the rounding of fp32 ones. A save checks every
// weight while training waits.
// Thread safety: pure function.
#include "unishard/format/dtype.hpp"

#include <cstddef>
#include <span>

namespace unishard::trainer::detail {

/// Returns true when `stored` holds round_to_bfloat16() or round_to_float16() of each element of
/// `master`.
/// Pre: stored.size() == 2 * master.size(); dtype is BFloat16 or Float16.
bool is_rounding(std::span<const float> master, std::span<const std::byte> stored, DType dtype);

}  // namespace unishard::trainer::detail
