#pragma once
// Loads a checkpoint of any format into the state of a run. Rank 0 resolves which checkpoint is
// meant; each rank compares it with the engine and reads only the element ranges that it holds.
// Only a matrix that the file stores transposed is read whole. A file that holds only weights
// starts a new run from them.
#include "unishard/trainer/checkpointing.hpp"
#include "unishard/trainer/communicator.hpp"

#include "state/training_state.hpp"

#include <optional>
#include <string>

namespace unishard::trainer::detail {

/// Does everything in Engine::load_checkpoint() up to publishing the parameters. Collective.
LoadReport load(TrainingState& state, Communicator& communicator, const EngineOptions& options,
                const Path& folder, const std::optional<std::string>& tag);

}  // namespace unishard::trainer::detail
