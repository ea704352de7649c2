#pragma once
// Sums with a fixed order of additions, which gives the same bits for every world size.
// Thread safety: pure functions.
#include "unishard/format/dtype.hpp"

#include <cstdint>
#include <span>

namespace unishard::trainer {

/// Adds values[i] to accumulator[i] for every i.
/// Pre: dtype is Float32, BFloat16 or Float16; `values` holds accumulator.size() elements.
void fold_add(std::span<float> accumulator, DType dtype, std::span<const std::byte> values);

}  // namespace unishard::trainer
