#pragma once
// The roll call at the start of a job: the processes that meet at a store are its ranks.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>

namespace unishard::trainer::detail {

/// Blocks until ranks 0 to `world_size` - 1 have called it with the same store.
/// Throws: on every rank, Mismatch when two processes have the same rank or other world sizes;
/// PeerFailed after the store's timeout, naming the ranks that did not call.
void call_roll(c10d::Store& store, std::uint32_t rank, std::uint32_t world_size);

/// To be called by every rank before it ends with an error that all have found: waits for the
/// others, a few seconds at most, because one of the ranks serves the store.
void let_all_know(c10d::Store& store, std::uint32_t world_size) noexcept;

}  // namespace unishard::trainer::detail
