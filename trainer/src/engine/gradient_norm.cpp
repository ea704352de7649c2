#include "engine/gradient_norm.hpp"

#include "state/square_sums.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

namespace unishard::trainer::detail {
namespace {

struct NodeSum {
  TreeNode node;
  double value = 0;
};

/// Returns the sum at the root. Blocks behind the last node count as zeros, which change no bit.
/// Pre: the nodes tile the blocks from 0 on, in order.
double root_of(std::span<const NodeSum> nodes) {
  std::vector<NodeSum> open;  // no two of them are siblings
  const auto join = [&open] {
    const NodeSum right = open.back();
    open.pop_back();
    NodeSum& left = open.back();
    left = {{left.node.level + 1, left.node.index / 2}, left.value + right.value};
  };
  const auto are_siblings = [&open] {
    if (open.size() < 2) return false;
    const TreeNode &left = open[open.size() - 2].node, &right = open.back().node;
    return right.index % 2 == 1 && left == TreeNode{right.level, right.index - 1};
  };
  for (const NodeSum& sum : nodes) {
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

}  // namespace

at::Tensor gradient_squares(const ModelState& model) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  for (const UnitRecord& unit : model.units) sums.push_back(unit.flat->gradient_squares());
  return sums.empty() ? at::empty({0}, at::kDouble) : at::cat(sums);
}

std::vector<double> equally_many(const ModelState& model, std::span<const double> own_sums,
                                 std::uint32_t ranks) {
  std::size_t most = 0;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    std::size_t count = 0;
    for (const UnitRecord& unit : model.units) count += nodes_of(unit.flat->layout(), r).size();
    most = std::max(most, count);
  }
  std::vector<double> mine(own_sums.begin(), own_sums.end());
  mine.resize(most);
  return mine;
}

double norm_of(const ModelState& model, std::span<const double> all_sums, std::uint32_t ranks) {
  const bool is_sharded = std::ranges::any_of(
      model.units, [](const UnitRecord& unit) { return unit.flat->placement().stage > 0; });
  const std::size_t most = all_sums.size() / ranks;
  const std::uint32_t used = is_sharded ? ranks : 1;  // else every rank has all sums
  std::vector<std::size_t> next(used);  // of each rank's sums: those that are used already
  double total = 0;
  for (const UnitRecord& unit : model.units) {
    std::vector<NodeSum> sums;
    for (std::uint32_t r = 0; r < used; ++r) {
      for (const TreeNode& node : nodes_of(unit.flat->layout(), r))
        sums.push_back({node, all_sums[r * most + next[r]++]});
    }
    total += root_of(sums);
  }
  return std::sqrt(total);
}

double gradient_norm(const ModelState& model, std::span<const double> own_sums,
                     Communicator& communicator) {
  const std::uint32_t ranks = communicator.size();
  return norm_of(model, gather_doubles(communicator, equally_many(model, own_sums, ranks)), ranks);
}

}  // namespace unishard::trainer::detail
