// Lamb multiplies the rate of each parameter by the ratio of two norms over the whole parameter.
// Each rank sums the squares of its elements by blocks of the unit's flat vector, which no rank
// shares with another. The sums of all blocks, in their order, are then added on every rank, so
// that the norms do not depend on where the vector is cut.
#include "engine/lamb_update.hpp"

#include "device/tensor_bytes.hpp"
#include "engine/step_constants.hpp"
#include "engine/update.hpp"
#include "optimizer/rules.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace unishard::trainer::detail {
namespace {

/// The squares of one parameter's elements in one block, or of all.
struct LambSquares {
  double weights = 0;
  double update = 0;
};

/// Returns the number of blocks that a range of a parameter touches.
std::size_t blocks_in(const FlatUnit& unit, std::size_t slot, const ElementRange& range) {
  if (range.empty()) return 0;
  const std::uint64_t offset = unit.layout().flat.slots[slot].offset;
  const std::uint64_t first = (offset + range.begin) / kShardBlock;
  return static_cast<std::size_t>((offset + range.end - 1) / kShardBlock - first + 1);
}

/// Adds two numbers for each block of what `tile`, which begins with a block, has of the parameter.
void add_block_sums(const ParameterRecord& parameter, const LambStepRule& rule, const Tile& tile,
                    std::vector<double>& sums) {
  const ElementRange range = range_in(tile, parameter);
  if (range.empty()) return;
  const at::Tensor weights = part_of(tile.weights, tile, range).cpu();
  const at::Tensor first = part_of(tile.states[0], tile, range).cpu();
  const at::Tensor second = part_of(tile.states[1], tile, range).cpu();
  const auto w = floats_of(weights), m = floats_of(first), v = floats_of(second);
  for (std::size_t i = 0; i < w.size();) {
    const std::uint64_t left = kShardBlock - (range.begin + i) % kShardBlock;
    const std::size_t end = std::min(w.size(), i + static_cast<std::size_t>(left));
    LambSquares block;
    for (; i < end; ++i) {
      const double weight = w[i], update = rule.direction(w[i], m[i], v[i]);
      block.weights += weight * weight;
      block.update += update * update;
    }
    sums.push_back(block.weights);
    sums.push_back(block.update);
  }
}

template <class Use>
void for_each_parameter(const TrainingState& state, const Use& use) {
  for (const UnitRecord& unit : state.model.units)
    for (const std::size_t index : unit.parameters) use(state.model.parameters[index]);
}

/// Updates the moments, and returns the sums of what this rank holds: parameter after parameter, in
/// the order of for_each_parameter().
std::vector<double> update_moments(const TileUpdate& update) {
  const TrainingState& state = update.state;
  std::map<const ParameterRecord*, std::vector<double>> by_parameter;
  TilePipeline pipeline(state, update.runtime.trace());
  for (const UnitRecord& unit : state.model.units)
    if (!unit.parameters.empty()) pipeline.add(unit, unit.flat->arrays());
  pipeline.run([&](const Tile& tile) {
    update.runtime.run(Stream::Compute, "moments of " + tile.flat().name(), [&] { update(tile); });
    for (const std::size_t index : tile.unit->parameters) {
      const ParameterRecord& parameter = state.model.parameters[index];
      const LambStepRule rule(hyper_of_step(state, parameter), state.step + 1, 1);
      add_block_sums(parameter, rule, tile, by_parameter[&parameter]);
    }
  });
  std::vector<double> sums;
  for_each_parameter(state, [&](const ParameterRecord& parameter) {
    const std::vector<double>& own = by_parameter[&parameter];
    sums.insert(sums.end(), own.begin(), own.end());
  });
  return sums;
}

/// Returns the squares of every parameter over all ranks, in the order of for_each_parameter(),
/// from the sums of this rank.
std::vector<LambSquares> squares_of_parameters(const TrainingState& state, std::vector<double> mine,
                                               Communicator& communicator) {
  bool is_sharded = false;
  for (const UnitRecord& unit : state.model.units) is_sharded |= unit.flat->placement().stage > 0;
  const std::uint32_t ranks = is_sharded ? communicator.size() : 1;
  const auto most = static_cast<std::size_t>(
      is_sharded ? agree_max(communicator, static_cast<std::int64_t>(mine.size()))
                 : static_cast<std::int64_t>(mine.size()));
  mine.resize(most);
  const std::vector<double> all = is_sharded ? gather_doubles(communicator, mine) : mine;
  std::vector<std::size_t> next(ranks);
  std::vector<LambSquares> squares;
  for_each_parameter(state, [&](const ParameterRecord& parameter) {
    LambSquares sum;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const FlatUnit& unit = *parameter.unit;
      const auto range = unit.layout().held_by(rank, parameter.slot);
      for (std::size_t left = blocks_in(unit, parameter.slot, range); left > 0; --left) {
        sum.weights += all[rank * most + next[rank]++];
        sum.update += all[rank * most + next[rank]++];
      }
    }
    squares.push_back(sum);
  });
  return squares;
}

}  // namespace

void update_with_lamb(TrainingState& state, Runtime& runtime, Communicator& communicator,
                      double gradient_norm) {
  const at::NoGradGuard no_grad;
  const float scale = gradient_scale(state, gradient_norm);
  TileUpdate update = update_of_step(state, runtime, scale);
  const std::vector<LambSquares> squares =
      squares_of_parameters(state, update_moments(update), communicator);
  std::map<const ParameterRecord*, double> ratios;
  std::size_t number = 0;
  for_each_parameter(state, [&](const ParameterRecord& parameter) {
    const LambSquares& sums = squares[number++];
    ratios[&parameter] = lamb_ratio(hyper_of_step(state, parameter), std::sqrt(sums.weights),
                                    std::sqrt(sums.update));
  });
  const Optimizer step = lamb_step();
  update_tiles({.state = state,
                .optimizer = [&](const ParameterRecord&) -> const Optimizer& { return step; },
                .runtime = runtime,
                .on_host = update.on_host,
                .scale = scale,
                .hyper =
                    [&](const ParameterRecord& parameter) {
                      Hyper hyper = hyper_of_step(state, parameter);
                      hyper.lr *= ratios.at(&parameter);
                      return hyper;
                    }},
               {});
}

}  // namespace unishard::trainer::detail
