#pragma once
// Megatron-Core's `torch_dist` checkpoints: a DCP folder iter_<n> with metadata.json and common.pt,
// in a folder with latest_checkpointed_iteration.txt. Measured with megatron-core 0.16.1.
#include "formats/dcp/state_dict.hpp"

#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::dcp {

/// Returns true for the folder of one iteration.
bool is_megatron_iteration(Storage& storage, const Path& folder);

/// Returns true where moments have the keys that Megatron-Core gives them, by which an iteration is
/// known that has lost its metadata.json.
bool has_megatron_keys(const StateDict& state);

/// Returns the iteration of which a folder is by its name, iter_0001000; nullopt for another name.
std::optional<double> iteration_of(const Path& folder);

/// Returns the folder that latest_checkpointed_iteration.txt names; nullopt where there is no such
/// file.
/// Throws: Corrupt when the file names no iteration.
std::optional<Path> latest_iteration(Storage& storage, const Path& run);

/// Returns the names of the folders iter_<n> of a run, the earliest first.
std::vector<std::string> iterations_in(Storage& storage, const Path& run);

/// Gives the entries of an iteration the keys that other trainers use, and adds what common.pt
/// holds: groups, step, schedule, arguments. A loss tells where it is missing, or the optimizer in
/// it; a remark, where it is of another iteration than the folder by its name, or metadata.json is
/// missing.
/// Pre: builder.add_folder() has added the folder.
void add_megatron(Storage& storage, const Path& folder, StateDictBuilder& builder);

}  // namespace unishard::converters::dcp
