#include "runtime/host_square_sums.hpp"

#include "unishard/format/partition.hpp"

#include <array>

namespace unishard::trainer::detail {
namespace {

/// Pre: 2^n blocks.
double tree_square_sum(std::span<const float> gradients) {
  double sum = 0;
  if (gradients.size() == kShardBlock) {
    block_square_sums(gradients, {&sum, 1});
  } else {
    const std::size_t half = gradients.size() / 2;
    sum = tree_square_sum(gradients.first(half)) + tree_square_sum(gradients.subspan(half));
  }
  return sum;
}

}  // namespace

void block_square_sums(std::span<const float> gradients, std::span<double> block_sums) {
  std::array<double, kShardBlock> squares;
  for (std::size_t block = 0; block < block_sums.size(); ++block) {
    const auto values = gradients.subspan(block * kShardBlock, kShardBlock);
    for (std::size_t i = 0; i < kShardBlock; ++i) {
      const auto value = static_cast<double>(values[i]);
      squares[i] = value * value;
    }
    for (std::size_t half = kShardBlock / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) squares[i] += squares[half + i];
    }
    block_sums[block] = squares[0];
  }
}

void group_square_sums(std::span<const float> gradients, std::span<const std::uint8_t> levels,
                       std::span<double> sums) {
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const std::size_t elements = kShardBlock << levels[i];
    sums[i] = tree_square_sum(gradients.first(elements));
    gradients = gradients.subspan(elements);
  }
}

}  // namespace unishard::trainer::detail
