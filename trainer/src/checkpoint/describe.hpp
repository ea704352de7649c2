#pragma once
// The training state as a catalog, the same on every rank.
#include "checkpoint/local_state.hpp"

namespace unishard::trainer::detail {

/// Collective: all ranks agree which 16-bit weights are derived.
Catalog describe(const TrainingState& state, const LocalState& local, Communicator& communicator);

/// What must be in a checkpoint to be loaded: tensors, aliases and groups.
Catalog describe_wanted(const TrainingState& state, const LocalState& local);

}  // namespace unishard::trainer::detail
