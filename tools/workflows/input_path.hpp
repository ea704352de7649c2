#pragma once
// What a user means by the name of a checkpoint.
#include "unishard/format/storage.hpp"

#include <string>

namespace unishard::tools {

/// Returns the path of the checkpoint, or of the folder of checkpoints, that `name` means: a model
/// in the hub's cache (find_in_hub_cache()), the one that UniShard's plug-in has saved in a folder
/// of accelerate (find_within_accelerate()), else `name` itself.
/// Throws: what these two throw.
std::string find_input(Storage& storage, const std::string& name);

}  // namespace unishard::tools
