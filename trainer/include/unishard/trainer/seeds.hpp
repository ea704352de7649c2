#pragma once
// Random numbers without state: every seed is a hash of what it is for, never of the rank, so
// nothing of it needs saving and no world size changes it. Pure; any thread.
#include <cstdint>
#include <initializer_list>

namespace unishard::trainer {

/// A hash of the values in order (splitmix64 finaliser after each).
std::uint64_t seed_from(std::initializer_list<std::uint64_t> values);

/// Seed of the initial values of the unit that was constructed as number `unit`.
std::uint64_t initial_value_seed(std::uint64_t seed, std::uint64_t unit);

/// Seed of the dropout masks of one unit in one micro-batch.
std::uint64_t dropout_seed(std::uint64_t seed, std::int64_t step, std::int64_t micro_batch,
                           std::uint64_t unit);

}  // namespace unishard::trainer
