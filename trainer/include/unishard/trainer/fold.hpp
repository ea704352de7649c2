#pragma once
// Sums whose order is part of the contract: they give the same bits for every world size. Pure; any
// thread.
#include "unishard/format/dtype.hpp"

#include <cstdint>
#include <span>

namespace unishard::trainer {

/// accumulator[i] += values[i]. Pre: dtype is Float32 or BFloat16; values holds accumulator.size()
/// elements.
void fold_add(std::span<float> accumulator, DType dtype, std::span<const std::byte> values);

/// Sum of squares of each kShardBlock elements, in double, in element order. Pre: gradients.size()
/// is a multiple of kShardBlock and block_sums has one element per block.
void block_square_sums(std::span<const float> gradients, std::span<double> block_sums);

}  // namespace unishard::trainer
