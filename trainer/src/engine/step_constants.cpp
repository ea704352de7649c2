#include "engine/step_constants.hpp"

namespace unishard::trainer::detail {

float gradient_scale(const TrainingState& state, double norm) {
  const double limit = state.config.gradient_clipping;
  const bool clips = limit > 0 && norm > limit;
  return static_cast<float>(clips ? limit / (norm + 1e-6) : 1.0) /
         static_cast<float>(state.loss_scale());
}

Hyper hyper_of_step(const TrainingState& state, const ParameterRecord& parameter) {
  Hyper hyper = state.groups[parameter.group].hyper;
  const Schedule& schedule = state.config.schedule;
  hyper.lr = learning_rate(schedule, state.last_iteration, hyper.lr);
  if (state.adam) return hyper;  // DeepSpeed's OneCycle leaves the momenta of Muon
  const auto betas = scheduled_betas(schedule, state.last_iteration, {hyper.beta1, hyper.beta2});
  hyper.beta1 = betas[0];
  hyper.beta2 = betas[1];
  return hyper;
}

}  // namespace unishard::trainer::detail
