#pragma once
// The training state as a catalog, which is the same on every rank.
#include "checkpoint/local_state.hpp"

namespace unishard::trainer::detail {

/// Returns the catalog. Collective: the ranks agree which 16-bit weights are derived.
Catalog describe(const TrainingState& state, const LocalState& local, Communicator& communicator);

/// Returns a catalog that suffices for plan_shard(), without asking other ranks: all 16-bit weights
/// that have a master count as derived.
Catalog describe_layout(const TrainingState& state, const LocalState& local,
                        std::uint32_t world_size);

/// Returns what a checkpoint must hold to be loaded: tensors, aliases and groups.
Catalog describe_wanted(const TrainingState& state, const LocalState& local);

/// Returns {"library", "torch", "threads", "cpu"}, on which the bits of a run depend.
Json producer();
/// Returns one line for each entry of `saved` that differs in this process, because the last bits
/// of a resumed run may then differ.
std::vector<std::string> compare_producer(const Json& saved);

}  // namespace unishard::trainer::detail
