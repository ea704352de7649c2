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

/// Computes the sum of squares of each kShardBlock elements, in double, by halves: the second half
/// of the squares is added to the first, and so on with what is left.
/// Pre: gradients.size() is a multiple of kShardBlock; `block_sums` has one element per block.
void block_square_sums(std::span<const float> gradients, std::span<double> block_sums);

}  // namespace unishard::trainer
