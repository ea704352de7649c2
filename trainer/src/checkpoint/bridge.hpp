#pragma once
// Connects the trainer to the checkpoint format: the engine's state as a catalog, its memory as
// fragments.
#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/trainer/engine.hpp"

#include "engine/training_state.hpp"

namespace unishard::trainer::detail {

/// Does everything in Engine::load_checkpoint() up to publishing the parameters. Collective.
LoadReport load(TrainingState& state, Communicator& communicator, const EngineOptions& options,
                const Path& folder, const std::optional<std::string>& tag);

/// Throws Mismatch, listing every difference between the tensors in a checkpoint and those that the
/// engine needs.
void require_match(const Catalog& saved, const Catalog& wanted, const std::string& where);

/// Returns {"library", "torch", "threads", "cpu"}, on which the bits of a run depend.
Json producer();
/// Returns one line for each entry of `saved` that differs in this process, because the last bits
/// of a resumed run may then differ.
std::vector<std::string> compare_producer(const Json& saved);

}  // namespace unishard::trainer::detail
