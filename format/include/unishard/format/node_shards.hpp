#pragma once
// Checkpoints of which every node has saved the shards of its own ranks to a folder of its own.
// Each folder has the same manifest, whose catalog records which node wrote which shard: SPEC.md,
// section "Folders of nodes".
// Thread safety: values and functions without state.
#include "unishard/format/manifest.hpp"
#include "unishard/format/node_names.hpp"
#include "unishard/format/storage.hpp"

#include <string>
#include <vector>

namespace unishard {

/// Returns whether the file of each shard is in `tag_folder`, by rank.
std::vector<bool> shards_here(Storage& storage, const Path& tag_folder, const Manifest& manifest);

/// Returns a list of the shards that are nowhere, with the nodes that wrote them: "shard-00002-of-
/// 00004.h5, shard-00003-of-00004.h5 (of node 1)".
std::string list_missing_shards(const Manifest& manifest, const std::vector<bool>& here);

/// Opens the checkpoint in `tag_folder`, or, where it is one node's part, the shards that are here.
/// Returns its manifest.
/// Throws: what CheckpointReader throws; NotFound for a part without a shard.
Manifest require_whole_part(Storage& storage, const Path& tag_folder);

}  // namespace unishard
