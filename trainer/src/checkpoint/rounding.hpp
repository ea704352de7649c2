#pragma once
// Checks at memory speed whether bf16 values are the rounding of fp32 ones. A save checks every
// weight while training waits.
// Thread safety: pure functions.
#include <cstddef>
#include <span>

namespace unishard::trainer::detail {

/// Returns true when `stored` holds round_to_bfloat16() of each element of `master`.
/// Pre: stored.size() == 2 * master.size().
bool is_rounding(std::span<const float> master, std::span<const std::byte> stored);

/// Returns true when all values are zeros or normal finite numbers, for which every implementation
/// of round-to-nearest-even gives the same result.
bool rounds_one_way(std::span<const float> values);

}  // namespace unishard::trainer::detail
