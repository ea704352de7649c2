#pragma once
// Random numbers without state: every seed is a hash of its purpose and never of the rank. Nothing
// needs to be saved, and the world size changes nothing.
// Thread safety: pure functions.
#include <cstdint>
#include <initializer_list>

namespace unishard::trainer {

/// Returns a hash of the values in order (splitmix64 finaliser after each).
std::uint64_t seed_from(std::initializer_list<std::uint64_t> values);

/// Returns the seed of the initial values of unit number `unit`, in order of construction.
std::uint64_t initial_value_seed(std::uint64_t seed, std::uint64_t unit);

/// Returns the seed of the dropout masks of one unit in one micro-batch. `use` counts the unit's
/// uses in the micro-batch from 0.
std::uint64_t dropout_seed(std::uint64_t seed, std::int64_t step, std::int64_t micro_batch,
                           std::uint64_t unit, std::uint64_t use = 0);

}  // namespace unishard::trainer
