#pragma once
// The folders of checkpoints of a run in which each node has its own. All functions are collective.
#include "unishard/format/file_excerpt.hpp"
#include "unishard/trainer/communicator.hpp"

#include "comm/nodes.hpp"

#include <functional>
#include <vector>

namespace unishard::trainer::detail {

/// Creates the folders.
/// Throws: InvalidArgument on all ranks, naming the nodes, when two of them have the same folder.
void require_separate_folders(Communicator& communicator, const Nodes& nodes, Storage& storage,
                              const Path& folder);

/// Publishes on this node what a save that was killed has published on another node only; it is
/// complete here as well (save.cpp, step 4).
void finish_publishing(Communicator& communicator, const Nodes& nodes, Storage& storage,
                       const Path& folder);

/// Calls each leader's `read`, which opens shards of its node in `folder`, and returns what those
/// of the other nodes have read of their files.
std::vector<FileExcerpt> share_tables(Communicator& communicator, const Nodes& nodes,
                                      Storage& storage, const Path& folder,
                                      const std::function<void(Storage&)>& read);

}  // namespace unishard::trainer::detail
