#pragma once
// Whether bf16 values are the rounding of fp32 ones, at the speed of memory: a save asks this of
// every weight while training waits. Pure functions; any thread.
#include <cstddef>
#include <span>

namespace unishard::trainer::detail {

/// Whether `stored` is round_to_bfloat16() of each of `master`. Pre: two bytes for each.
bool is_rounding(std::span<const float> master, std::span<const std::byte> stored);

/// Whether all are zeros or normal finite numbers: rounding these to nearest even leaves no choice,
/// whoever does it.
bool rounds_one_way(std::span<const float> values);

}  // namespace unishard::trainer::detail
