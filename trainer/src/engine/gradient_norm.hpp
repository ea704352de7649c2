#pragma once
#include "unishard/trainer/communicator.hpp"

#include "state/model_state.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
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

/// Returns the sums of the squared gradients that this rank holds, one for each block of the flat
/// vectors, units in order: float64, on their device. Does not wait for the device.
at::Tensor gradient_squares(const ModelState& model);

/// Returns the global gradient norm from the values of gradient_squares(), with the same bits on
/// every world size and stage: blocks are summed along a binary tree, units in order. Collective: a
/// rank sends one number for each of its tree_nodes().
double gradient_norm(const ModelState& model, std::span<const double> block_sums,
                     Communicator& communicator);

}  // namespace unishard::trainer::detail
