#include "state/square_sums.hpp"

#include "unishard/format/partition.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>

namespace unishard::trainer::detail {

std::vector<TreeNode> tree_nodes(std::uint64_t begin, std::uint64_t end) {
  std::vector<TreeNode> nodes;
  while (begin < end) {
    const auto fits = static_cast<int>(std::bit_width(end - begin)) - 1;
    const int aligned = begin == 0 ? fits : std::countr_zero(begin);
    const auto level = static_cast<std::uint32_t>(std::min(fits, aligned));
    nodes.push_back({level, begin >> level});
    begin += std::uint64_t{1} << level;
  }
  return nodes;
}

std::vector<TreeNode> nodes_of(const UnitLayout& layout, std::uint32_t rank) {
  const std::uint64_t count = static_cast<std::uint64_t>(layout.length()) / kShardBlock;
  const std::uint64_t begin = layout.placement.stage == 0 ? 0 : rank * count;
  return tree_nodes(begin, begin + count);
}

at::Tensor square_sums(Runtime& runtime, const UnitLayout& layout, const at::Tensor& gradients) {
  const at::NoGradGuard no_grad;
  std::vector<std::uint8_t> levels;
  for (const TreeNode& node : nodes_of(layout, layout.placement.rank))
    levels.push_back(static_cast<std::uint8_t>(node.level));
  const at::Tensor sums =
      at::empty({static_cast<std::int64_t>(levels.size())}, gradients.options().dtype(at::kDouble));
  if (!levels.empty()) runtime.sum_squares(gradients, levels, sums);
  return sums;
}

}  // namespace unishard::trainer::detail
