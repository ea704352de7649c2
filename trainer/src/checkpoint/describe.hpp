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

}  // namespace unishard::trainer::detail
