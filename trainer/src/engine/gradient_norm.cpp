#include "engine/gradient_norm.hpp"

#include "unishard/trainer/fold.hpp"

#include <cmath>
#include <numeric>

namespace unishard::trainer::detail {

double gradient_norm(std::span<FlatUnit* const> units, Communicator& communicator) {
  std::vector<double> mine;
  std::vector<std::size_t> blocks;  // per unit, on one rank
  bool sharded = false;
  for (const FlatUnit* unit : units) {
    const auto gradients = unit->gradients();
    sharded = sharded || unit->placement().stage > 0;
    blocks.push_back(gradients.size() / kShardBlock);
    mine.resize(mine.size() + blocks.back());
    block_square_sums(gradients, std::span(mine).last(blocks.back()));
  }
  const std::vector<double> all = sharded ? gather_doubles(communicator, mine) : mine;
  const std::size_t ranks = sharded ? communicator.size() : 1;
  double sum = 0;
  std::size_t first = 0;
  for (const std::size_t count : blocks) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const double* part = all.data() + rank * mine.size() + first;
      sum = std::accumulate(part, part + count, sum);  // blocks past the unit's end add exact zeros
    }
    first += count;
  }
  return std::sqrt(sum);
}

}  // namespace unishard::trainer::detail
