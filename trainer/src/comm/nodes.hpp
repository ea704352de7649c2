#pragma once
// Which ranks share a folder of checkpoints: with "use_node_local_storage", those of one node, else
// all of them.
#include "unishard/trainer/communicator.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

/// Thread safety: an immutable value.
class Nodes {
 public:
  /// One node with all of `size` ranks.
  explicit Nodes(std::uint32_t size) : leaders_(size) {}
  /// `names` has the name of each rank's node.
  explicit Nodes(std::vector<std::string> names);

  /// Returns true when all ranks share one folder.
  bool is_one() const { return names_.empty(); }
  /// Returns the first rank of the node of `rank`, which acts for it.
  std::uint32_t leader_of(std::uint32_t rank) const { return leaders_[rank]; }
  bool is_leader(std::uint32_t rank) const { return leaders_[rank] == rank; }
  /// Returns the leaders of all nodes, ascending. The first is rank 0.
  std::vector<std::uint32_t> leaders() const;
  /// Returns the name of each rank's node; empty for one node.
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;  ///< by rank
  std::vector<std::uint32_t> leaders_;
};

/// Exchanges the names of the nodes if `is_local`. `node` is what the launcher calls this rank's
/// node, or empty. Collective.
Nodes find_nodes(Communicator& communicator, bool is_local, const std::string& node);

}  // namespace unishard::trainer::detail
