// A Feistel network permutes the smallest power of four that is at least the sample count. An index
// that falls outside the samples is permuted again until it falls inside (cycle walking), which
// keeps the map a bijection.
#include "unishard/trainer/sample_order.hpp"

#include "unishard/trainer/seeds.hpp"

#include <bit>

namespace unishard::trainer {
namespace {

constexpr std::uint64_t kRounds = 4;

std::uint64_t permute_once(std::uint64_t index, unsigned half_bits, std::uint64_t key) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = index >> half_bits;
  std::uint64_t right = index & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t mixed = left ^ (seed_from({key, round, right}) & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits) | right;
}

}  // namespace

std::uint64_t SampleOrder::sample(std::uint64_t global_index) const {
  const auto bits = static_cast<unsigned>(std::bit_width(samples_ - 1));
  const unsigned half_bits = (bits + 1) / 2;
  if (half_bits == 0) return 0;
  const std::uint64_t key = seed_from({seed_, epoch(global_index)});
  std::uint64_t position = global_index % samples_;
  do {
    position = permute_once(position, half_bits, key);
  } while (position >= samples_);
  return position;
}

}  // namespace unishard::trainer
