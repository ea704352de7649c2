#pragma once
// The sums of squares of which the norm of the gradients is made. The blocks of a unit's flat
// vector are the leaves of a binary tree, which does not depend on how many ranks share them.
#include "unishard/trainer/runtime.hpp"

#include "state/unit_layout.hpp"

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

/// Returns the nodes of a unit's blocks that `rank` sums.
std::vector<TreeNode> nodes_of(const UnitLayout& layout, std::uint32_t rank);

/// Returns the sums of the squares of what this rank holds of a unit's gradients, one for each of
/// its nodes: float64, on the runtime's device. Does not wait for the device.
/// Pre: float32, contiguous, on that device.
at::Tensor square_sums(Runtime& runtime, const UnitLayout& layout, const at::Tensor& gradients);

}  // namespace unishard::trainer::detail
