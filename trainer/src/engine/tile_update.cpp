#include "engine/tile_update.hpp"

#include "engine/step_constants.hpp"
#include "runtime/device_arrays.hpp"

#include <algorithm>

namespace unishard::trainer::detail {
namespace {

/// Returns elements [begin, end) of a flat array of which `tensor` are those from `first` on.
at::Tensor cut(const at::Tensor& tensor, std::int64_t first, ElementRange range) {
  return tensor.narrow(0, static_cast<std::int64_t>(range.begin) - first,
                       static_cast<std::int64_t>(range.size()));
}

}  // namespace

void TileUpdate::update_parameter(const ParameterRecord& parameter, const Tile& tile,
                                  const at::Tensor& gradients) const {
  const UnitLayout& layout = tile.flat().layout();
  const std::uint64_t size = layout.held(parameter.slot).size();
  if (size == 0) return;
  const std::uint64_t offset = layout.held_offset(parameter.slot);
  const auto first = static_cast<std::uint64_t>(tile.begin);
  const ElementRange range{std::max(offset, first),
                           std::min(offset + size, first + static_cast<std::uint64_t>(tile.count))};
  if (range.begin >= range.end) return;
  const Hyper hyper = hyper_of_step(state, parameter);
  UpdateTensors tensors{.weights = cut(tile.weights, tile.begin, range),
                        .gradients = cut(gradients, tile.begin, range),
                        .states = {}};
  for (const at::Tensor& each : tile.states) tensors.states.push_back(cut(each, tile.begin, range));
  if (tile.weights.is_cpu()) {
    on_host(rule_for(*state.optimizer, hyper, state.step + 1, scale), arrays_of(tensors, at::kCPU));
  } else {
    runtime.update(*state.optimizer, hyper, state.step + 1, scale, tensors);
  }
}

void TileUpdate::operator()(const Tile& tile) const {
  const at::Tensor gradients = tile.gradients.to(tile.weights.device());
  for (const std::size_t index : tile.unit->parameters)
    update_parameter(state.model.parameters[index], tile, gradients);
  if (!tile.arrays->rounded.is_in_file()) tile.arrays->round(tile.begin, tile.weights);
}

}  // namespace unishard::trainer::detail
