#include "unishard/trainer/seeds.hpp"

namespace unishard::trainer {
namespace {

enum Purpose : std::uint64_t { kInitialValues = 1, kDropout = 2 };

}  // namespace

std::uint64_t seed_from(std::initializer_list<std::uint64_t> values) {
  std::uint64_t state = 0;
  for (const std::uint64_t value : values) {
    state += value + 0x9e3779b97f4a7c15u;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
    state ^= state >> 31;
  }
  return state;
}

std::uint64_t initial_value_seed(std::uint64_t seed, std::uint64_t unit) {
  return seed_from({seed, kInitialValues, unit});
}

std::uint64_t dropout_seed(std::uint64_t seed, std::int64_t step, std::int64_t micro_batch,
                           std::uint64_t unit, std::uint64_t use) {
  const std::uint64_t first = seed_from({seed, kDropout, static_cast<std::uint64_t>(step),
                                         static_cast<std::uint64_t>(micro_batch), unit});
  return use == 0 ? first : seed_from({first, use});
}

}  // namespace unishard::trainer
