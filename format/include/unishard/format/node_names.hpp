#pragma once
// Which node wrote which shard of a checkpoint that is on the disks of several nodes: SPEC.md,
// section "Folders of nodes".
// Thread safety: pure functions.
#include "unishard/format/catalog.hpp"

#include <string>
#include <vector>

namespace unishard {

/// Returns the name of the node that wrote each shard, by rank; empty for a checkpoint that lies in
/// one folder.
std::vector<std::string> nodes_of(const Catalog& catalog);
/// Records the names, by rank; none for a checkpoint that lies in one folder.
void record_nodes(Catalog& catalog, const std::vector<std::string>& nodes);

}  // namespace unishard
