#pragma once
// Sums of squares with a fixed order of additions, which gives the same bits for every world size
// and device.
// Thread safety: pure functions.
#include <cstdint>
#include <span>

namespace unishard::trainer::detail {

/// Computes the sum of squares of each kShardBlock elements, in double, by halves: the second half
/// of the squares is added to the first, and so on with what is left.
/// Pre: gradients.size() is a multiple of kShardBlock; `block_sums` has one element per block.
void block_square_sums(std::span<const float> gradients, std::span<double> block_sums);

/// Computes one sum of squares for each of consecutive groups of blocks: group i has 2^levels[i]
/// blocks, whose block_square_sums() are added along a binary tree, neighbours first.
/// Pre: the groups together have all of `gradients`; `sums` has one element per group.
void group_square_sums(std::span<const float> gradients, std::span<const std::uint8_t> levels,
                       std::span<double> sums);

}  // namespace unishard::trainer::detail
