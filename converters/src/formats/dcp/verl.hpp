#pragma once
// The folders of verl, and of the RL trainers that took over its saver:
// `<run>/latest_checkpointed_iteration.txt` and `<run>/global_step_<N>/{actor,critic}`, each of
// which holds files of the ranks.
// Source: verl utils/checkpoint/fsdp_checkpoint_manager, trainer/ppo/ray_trainer.
#include "formats/dcp/rank_files.hpp"

#include <optional>
#include <string>

namespace unishard::converters::dcp {

/// Returns the folder with the files of the ranks, where `path` is a run or a step of verl. `tag`
/// names the step of a run; without it the newest is taken. nullopt for every other path.
/// Throws: NotFound, naming it, when the newest step is missing; InvalidArgument when a step holds
/// several models.
std::optional<Path> find_verl(Storage& storage, const Path& path,
                              const std::optional<std::string>& tag);

/// Reads `extra_state_world_size_<N>_rank_<r>.pt`, the schedule and the random states of the ranks.
void add_extra_state(const RankFileGroup& extra, StateDictBuilder& builder);

/// Notes what is known of a model and its optimizer where verl has saved them with FSDP2. Returns
/// the file that says so; nullopt elsewhere.
/// Throws: Corrupt when that file cannot be understood.
std::optional<Path> note_verl(Storage& storage, const Path& folder, StateDict& state);

}  // namespace unishard::converters::dcp
