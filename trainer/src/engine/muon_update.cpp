// Newton-Schulz needs whole matrices. The momentum is elementwise: each rank updates the elements
// that it holds, and the ranks gather the values of one unit after another. Each makes those
// matrices orthogonal of which it holds a part, by the same operations as all others, and its part
// of them takes the place of its gradients. What follows is as for other optimizers.
#include "engine/muon_update.hpp"

#include "engine/deterministic_scope.hpp"
#include "engine/gradient_norm.hpp"
#include "engine/newton_schulz.hpp"
#include "engine/step_constants.hpp"
#include "engine/step_numbers.hpp"
#include "engine/update.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace unishard::trainer::detail {
namespace {

bool has_matrices(const TrainingState& state, const UnitRecord& unit) {
  return std::ranges::any_of(unit.parameters, [&](const std::size_t index) {
    return state.uses_muon(state.model.parameters[index]);
  });
}

/// Updates the momenta of the matrices in `tile`, and replaces their gradients by what is to be
/// made orthogonal.
void update_momenta(const TileUpdate& update, const Tile& tile) {
  Tile target = tile;
  target.weights = tile.gradients.clone();
  update.update_some(
      target, [&](const ParameterRecord& parameter) { return update.state.uses_muon(parameter); });
  tile.arrays->gradients.write(tile.begin, target.weights);
}

/// Replaces what update_momenta() has left by the updates of the matrices times the loss scale,
/// which the gradients of the others have too.
void make_orthogonal(const TrainingState& state, const UnitRecord& unit) {
  FlatUnit& flat = *unit.flat;
  const UnitLayout& layout = flat.layout();
  const at::Tensor mine = flat.gradients_on_device();
  const at::Tensor whole = flat.gather_values("gathering the momenta of", mine);
  for (const std::size_t index : unit.parameters) {
    const ParameterRecord& parameter = state.model.parameters[index];
    const ElementRange held = layout.held(parameter.slot);
    if (!state.uses_muon(parameter) || held.empty()) continue;
    const at::Tensor matrix = layout.slot(whole, parameter.slot).view(parameter.tensor.sizes());
    const at::Tensor update =
        newton_schulz(matrix, state.groups[parameter.group].hyper.ns_method) * state.loss_scale();
    const auto size = static_cast<std::int64_t>(held.size());
    mine.narrow(0, static_cast<std::int64_t>(layout.held_offset(parameter.slot)), size)
        .copy_(update.view({-1}).narrow(0, static_cast<std::int64_t>(held.begin), size));
  }
  flat.replace_gradients(mine);
}

void orthogonalize_gradients(const TrainingState& state, Runtime& runtime) {
  const DeterministicScope scope(runtime.device(), state.config.is_deterministic());
  const auto scale = static_cast<float>(1 / state.loss_scale());
  const TileUpdate update = update_of_step(state, runtime, scale);
  TilePipeline pipeline(state, runtime.trace());
  for (const UnitRecord& unit : state.model.units)
    if (has_matrices(state, unit)) pipeline.add(unit, unit.flat->arrays());
  pipeline.run([&](const Tile& tile) {
    runtime.run(Stream::Compute, "momenta of " + tile.flat().name(),
                [&] { update_momenta(update, tile); });
    if (tile.is_last) make_orthogonal(state, *tile.unit);
  });
}

}  // namespace

double update_with_muon(TrainingState& state, Runtime& runtime, TensorCollectives& collectives,
                        Communicator& communicator) {
  const at::NoGradGuard no_grad;
  orthogonalize_gradients(state, runtime);
  const std::vector<double> squares = host_values(gradient_squares(state.model));
  collectives.require_healthy();
  const double norm = gradient_norm(state.model, squares, communicator) / state.loss_scale();
  const Optimizer step = muon_step();
  TileUpdate update = update_of_step(state, runtime, gradient_scale(state, norm));
  update.optimizer = [&](const ParameterRecord& parameter) -> const Optimizer& {
    return state.uses_muon(parameter) ? step : state.optimizer_of(parameter);
  };
  update_tiles(update, {});
  return norm;
}

}  // namespace unishard::trainer::detail
