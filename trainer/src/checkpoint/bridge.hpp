#pragma once
// Where the trainer and the checkpoint format meet: the engine's state as a catalog, its memory as
// fragments.
#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/trainer/engine.hpp"

#include "engine/training_state.hpp"

namespace unishard::trainer::detail {

/// Collective; Engine::load_checkpoint() up to publishing the parameters.
LoadReport load(TrainingState& state, Communicator& communicator, const EngineOptions& options,
                const Path& folder, const std::optional<std::string>& tag);

/// Throws Mismatch listing every difference between what a checkpoint holds and what the engine
/// needs.
void require_match(const Catalog& saved, const Catalog& wanted, const std::string& where);

/// {"library", "torch", "threads", "cpu"}: what the bits of a run depend on.
Json producer();
/// A line for each entry of `saved` that differs here, so that a resumed run may differ in its last
/// bits.
std::vector<std::string> compare_producer(const Json& saved);

}  // namespace unishard::trainer::detail
