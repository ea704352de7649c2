#pragma once
#include "state/model_state.hpp"

#include <cstdint>
#include <vector>

namespace unishard::trainer::detail {

/// The blocks [index * 2^level, (index + 1) * 2^level): a node of the binary tree over all blocks.
struct TreeNode {
  std::uint32_t level = 0;
  std::uint64_t index = 0;
  bool operator==(const TreeNode&) const = default;
};

/// Returns the largest nodes that together are the blocks [begin, end), in order: at most two for
/// each level.
std::vector<TreeNode> tree_nodes(std::uint64_t begin, std::uint64_t end);

/// Returns the global gradient norm, with the same bits on every world size and stage: squares are
/// summed per block of the flat vectors, blocks along a binary tree, units in order. Collective: a
/// rank sends one number for each of its tree_nodes().
/// Waits for the device.
double gradient_norm(const ModelState& model, Communicator& communicator);

}  // namespace unishard::trainer::detail
