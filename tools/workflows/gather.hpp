#pragma once
// Opens a checkpoint of which every node of a run has saved its own shards, from the folders of all
// of these nodes.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/overlaid_storage.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

/// One checkpoint in several folders.
struct GatheredCheckpoint {
  std::unique_ptr<OverlaidStorage> storage;  ///< outlives the reader
  std::shared_ptr<const CheckpointReader> reader;
};

/// Each of `folders` is a folder of checkpoints or the folder of one of them. A shard that several
/// of them have is read from the first in which its tables are sound.
/// Throws: NotFound for a folder without a checkpoint, and naming every shard that no folder has;
/// Mismatch, naming two folders, for checkpoints of different tags or saves; Corrupt for different
/// manifests of one save; what CheckpointReader throws.
GatheredCheckpoint open_gathered(Storage& storage, const std::vector<Path>& folders,
                                 const std::optional<std::string>& tag);

}  // namespace unishard::tools
