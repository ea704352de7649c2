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

/// Reads what verl saves beside model and optimizer. `extra` are the files
/// `extra_state_world_size_<N>_rank_<r>.pt`. Returns the other files that were read.
std::vector<Path> add_verl(Storage& storage, const Path& folder, const RankFileGroup& extra,
                           StateDictBuilder& builder);

}  // namespace unishard::converters::dcp
