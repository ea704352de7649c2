#pragma once
// A load from folders of which each node has its own. A rank reads what is on its node; what is on
// another node only, the leader of that node reads and sends to all. All functions but
// take_parts_elsewhere() are collective.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/overlaid_storage.hpp"
#include "unishard/trainer/communicator.hpp"

#include "checkpoint/read_tensor.hpp"
#include "comm/nodes.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

/// One checkpoint, as this rank sees it.
struct NodeCheckpoint {
  Path where;                                ///< folder of the tag on this node
  std::unique_ptr<OverlaidStorage> storage;  ///< with the tables of shards that are elsewhere
  std::shared_ptr<const CheckpointReader> reader;
  std::vector<bool> here;              ///< by shard: this node has its file
  std::vector<std::uint32_t> readers;  ///< by shard: the rank that reads it for other nodes
};

/// Opens the newest checkpoint that a node has, or the one that `tag` or `folder` names.
/// Throws: NotFound on all ranks, naming the shards that no node has, the nodes that wrote them and
/// the folders in which they were looked for; what CheckpointReader throws.
NodeCheckpoint open_on_nodes(Communicator& communicator, const Nodes& nodes, Storage& storage,
                             const Path& folder, const std::optional<std::string>& tag);

/// Removes from `parts` what this node does not have, and returns it, cut at fragments.
std::vector<WantedPart> take_parts_elsewhere(const NodeCheckpoint& checkpoint,
                                             std::vector<WantedPart>& parts);

/// Reads the parts of all ranks that their nodes do not have. `source` reads `checkpoint`.
void read_elsewhere(Communicator& communicator, const NodeCheckpoint& checkpoint,
                    const converters::Source& source, const std::vector<WantedPart>& parts);

}  // namespace unishard::trainer::detail
