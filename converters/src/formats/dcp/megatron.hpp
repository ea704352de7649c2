#pragma once
// Megatron-Core's `torch_dist` checkpoints: a DCP folder iter_<n> with metadata.json and common.pt,
// in a folder with latest_checkpointed_iteration.txt. Measured with megatron-core 0.16.1.
#include "formats/dcp/state_dict.hpp"

#include <optional>

namespace unishard::converters::dcp {

/// Returns true for the folder of one iteration.
bool is_megatron_iteration(Storage& storage, const Path& folder);

/// Returns the folder that latest_checkpointed_iteration.txt names; nullopt where there is no such
/// file.
/// Throws: Corrupt when the file names no iteration.
std::optional<Path> latest_iteration(Storage& storage, const Path& run);

/// Gives the entries of an iteration the keys that other trainers use, and adds what common.pt
/// holds: groups, step, schedule, arguments. A loss tells where it is missing.
/// Pre: builder.add_folder() has added the folder.
void add_megatron(Storage& storage, const Path& folder, StateDictBuilder& builder);

}  // namespace unishard::converters::dcp
