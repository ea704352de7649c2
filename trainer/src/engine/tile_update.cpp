#include "engine/tile_update.hpp"

#include "engine/step_constants.hpp"
#include "optimizer/parallel_update.hpp"
#include "runtime/device_arrays.hpp"

#include <algorithm>

namespace unishard::trainer::detail {

ElementRange range_in(const Tile& tile, const ParameterRecord& parameter) {
  const UnitLayout& layout = tile.flat().layout();
  const std::uint64_t size = layout.held(parameter.slot).size();
  if (size == 0) return {};  // another rank's; it has no offset here
  const std::uint64_t offset = layout.held_offset(parameter.slot);
  const auto first = static_cast<std::uint64_t>(tile.begin);
  const ElementRange range{std::max(offset, first),
                           std::min(offset + size, first + static_cast<std::uint64_t>(tile.count))};
  return range.begin < range.end ? range : ElementRange{};
}

at::Tensor part_of(const at::Tensor& tensor, const Tile& tile, ElementRange range) {
  return tensor.narrow(0, static_cast<std::int64_t>(range.begin) - tile.begin,
                       static_cast<std::int64_t>(range.size()));
}

TileUpdate update_of_step(const TrainingState& state, Runtime& runtime, float scale) {
  return {
      .state = state,
      .optimizer = [&state](const ParameterRecord& parameter) -> const Optimizer& {
        return state.optimizer_of(parameter);
      },
      .runtime = runtime,
      .on_host = update_in_parallel,
      .scale = scale,
      .hyper =
          [&state](const ParameterRecord& parameter) { return hyper_of_step(state, parameter); }};
}

void TileUpdate::update_parameter(const ParameterRecord& parameter, const Tile& tile,
                                  const at::Tensor& gradients) const {
  const ElementRange range = range_in(tile, parameter);
  if (range.empty()) return;
  UpdateTensors tensors{.weights = part_of(tile.weights, tile, range),
                        .gradients = part_of(gradients, tile, range),
                        .states = {}};
  for (const at::Tensor& each : tile.states) tensors.states.push_back(part_of(each, tile, range));
  const Hyper own = hyper(parameter);
  if (tile.weights.is_cpu()) {
    on_host(rule_for(optimizer(parameter), own, state.step + 1, scale),
            arrays_of(tensors, at::kCPU));
  } else {
    runtime.update(optimizer(parameter), own, state.step + 1, scale, tensors);
  }
}

void TileUpdate::operator()(const Tile& tile) const {
  const at::Tensor gradients = tile.gradients.to(tile.weights.device());
  for (const std::size_t index : tile.unit->parameters)
    update_parameter(state.model.parameters[index], tile, gradients);
  if (!tile.arrays->rounded.is_in_file()) tile.arrays->round(tile.begin, tile.weights);
}

}  // namespace unishard::trainer::detail
