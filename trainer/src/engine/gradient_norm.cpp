#include "engine/gradient_norm.hpp"

#include "unishard/trainer/fold.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace unishard::trainer::detail {
namespace {

struct Sum {
  TreeNode node;
  double value = 0;
};

/// Returns the sum of 2^level values, added along a binary tree.
double tree_sum(std::span<const double> values) {
  if (values.size() == 1) return values[0];
  const std::size_t half = values.size() / 2;
  return tree_sum(values.first(half)) + tree_sum(values.subspan(half));
}

/// Returns the sum at the root. Blocks behind the last node count as zeros, which change no bit.
/// Pre: the nodes tile the blocks from 0 on, in order.
double root_of(std::span<const Sum> nodes) {
  std::vector<Sum> open;  // no two of them are siblings
  const auto join = [&open] {
    const Sum right = open.back();
    open.pop_back();
    Sum& left = open.back();
    left = {{left.node.level + 1, left.node.index / 2}, left.value + right.value};
  };
  const auto are_siblings = [&open] {
    if (open.size() < 2) return false;
    const TreeNode &left = open[open.size() - 2].node, &right = open.back().node;
    return right.index % 2 == 1 && left == TreeNode{right.level, right.index - 1};
  };
  for (const Sum& sum : nodes) {
    open.push_back(sum);
    while (are_siblings()) join();
  }
  while (open.size() > 1) {
    TreeNode& last = open.back().node;
    if (are_siblings()) {
      join();
    } else {
      last = {last.level + 1, last.index / 2};  // its sibling holds zeros
    }
  }
  return open.empty() ? 0 : open.front().value;
}

std::uint64_t blocks_on_rank(const FlatUnit& unit) { return unit.gradients().size() / kShardBlock; }

/// The nodes of `unit` that `rank` sums.
std::vector<TreeNode> nodes_of(const FlatUnit& unit, std::uint32_t rank) {
  const std::uint64_t count = blocks_on_rank(unit);
  return tree_nodes(rank * count, (rank + 1) * count);
}

void append_sums(const FlatUnit& unit, std::uint32_t rank, std::vector<double>& sums) {
  std::vector<double> blocks(blocks_on_rank(unit));
  block_square_sums(unit.gradients(), blocks);
  std::span<const double> rest = blocks;
  for (const TreeNode& node : nodes_of(unit, rank)) {
    const std::size_t count = std::size_t{1} << node.level;
    sums.push_back(tree_sum(rest.first(count)));
    rest = rest.subspan(count);
  }
}

}  // namespace

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

double gradient_norm(std::span<FlatUnit* const> units, Communicator& communicator) {
  const bool sharded =
      std::ranges::any_of(units, [](const FlatUnit* unit) { return unit->placement().stage > 0; });
  const std::uint32_t ranks = sharded ? communicator.size() : 1;
  const std::uint32_t rank = sharded ? communicator.rank() : 0;
  std::vector<double> mine;
  for (const FlatUnit* unit : units) append_sums(*unit, rank, mine);
  std::vector<std::size_t> next(ranks);  // of each rank's sums: those that are used already
  std::size_t most = 0;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    std::size_t count = 0;
    for (const FlatUnit* unit : units) count += nodes_of(*unit, r).size();
    most = std::max(most, count);
  }
  mine.resize(most);
  const std::vector<double> all = sharded ? gather_doubles(communicator, mine) : mine;
  double total = 0;
  for (const FlatUnit* unit : units) {
    std::vector<Sum> sums;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      for (const TreeNode& node : nodes_of(*unit, r))
        sums.push_back({node, all[r * most + next[r]++]});
    }
    total += root_of(sums);
  }
  return std::sqrt(total);
}

}  // namespace unishard::trainer::detail
