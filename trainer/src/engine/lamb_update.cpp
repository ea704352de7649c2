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

namespace unishard::trainer::detail {
namespace {

/// The squares of one parameter's elements in one block, or of all.
struct LambSquares {
  double weights = 0;
  double update = 0;
};

/// Returns what this rank holds of a parameter, and its states.
UpdateTensors lamb_tensors(const ParameterRecord& parameter) {
  const FlatUnit& unit = *parameter.unit;
  const auto count = static_cast<std::int64_t>(unit.layout().held(parameter.slot).size());
  const auto offset = static_cast<std::int64_t>(unit.layout().held_offset(parameter.slot));
  UpdateTensors tensors{.weights = unit.master().values(offset, count),
                        .gradients = unit.gradients().values(offset, count),
                        .states = {}};
  for (const StateArray& each : unit.states()) tensors.states.push_back(each.values(offset, count));
  return tensors;
}

/// Returns the number of blocks that a range of a parameter touches.
std::size_t blocks_in(const FlatUnit& unit, std::size_t slot, const ElementRange& range) {
  if (range.empty()) return 0;
  const std::uint64_t offset = unit.layout().flat.slots[slot].offset;
  const std::uint64_t first = (offset + range.begin) / kShardBlock;
  return static_cast<std::size_t>((offset + range.end - 1) / kShardBlock - first + 1);
}

/// Adds two numbers for each block of what this rank holds of the parameter.
void add_block_sums(const ParameterRecord& parameter, const LambStepRule& rule,
                    std::vector<double>& sums) {
  const FlatUnit& unit = *parameter.unit;
  const ElementRange held = unit.layout().held(parameter.slot);
  if (held.empty()) return;
  const UpdateTensors tensors = lamb_tensors(parameter);
  const at::Tensor weights = tensors.weights.cpu();
  const at::Tensor first = tensors.states[0].cpu(), second = tensors.states[1].cpu();
  const auto w = floats_of(weights), m = floats_of(first), v = floats_of(second);
  const std::uint64_t offset = unit.layout().flat.slots[parameter.slot].offset + held.begin;
  for (std::size_t i = 0; i < w.size();) {
    const std::uint64_t left = kShardBlock - (offset + i) % kShardBlock;
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

/// Returns the squares of every parameter over all ranks, in the order of for_each_parameter().
std::vector<LambSquares> squares_of_parameters(const TrainingState& state,
                                               Communicator& communicator) {
  std::vector<double> mine;
  bool is_sharded = false;
  for_each_parameter(state, [&](const ParameterRecord& parameter) {
    is_sharded |= parameter.unit->placement().stage > 0;
    const LambStepRule rule(hyper_of_step(state, parameter), state.step + 1, 1);
    add_block_sums(parameter, rule, mine);
  });
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
  for_each_parameter(state, [&](const ParameterRecord& parameter) {
    if (parameter.unit->layout().held(parameter.slot).empty()) return;
    runtime.update(*state.optimizer, hyper_of_step(state, parameter), state.step + 1, scale,
                   lamb_tensors(parameter));
  });
  const std::vector<LambSquares> squares = squares_of_parameters(state, communicator);
  const Optimizer step = lamb_step();
  std::size_t number = 0;
  for_each_parameter(state, [&](const ParameterRecord& parameter) {
    const LambSquares& sums = squares[number++];
    if (parameter.unit->layout().held(parameter.slot).empty()) return;
    Hyper hyper = hyper_of_step(state, parameter);
    hyper.lr *= lamb_ratio(hyper, std::sqrt(sums.weights), std::sqrt(sums.update));
    runtime.update(step, hyper, state.step + 1, scale, lamb_tensors(parameter));
  });
  publish_units(state, Changed::Master);
}

}  // namespace unishard::trainer::detail
