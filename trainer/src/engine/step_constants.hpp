#pragma once
// What the updates of one step have in common.
#include "state/training_state.hpp"

namespace unishard::trainer::detail {

/// Returns the factor of the gradients: clipping by their norm, and the end of the loss scale.
float gradient_scale(const TrainingState& state, double norm);

/// Returns the hyperparameters of a parameter's group, as the schedule has them for this step.
Hyper hyper_of_step(const TrainingState& state, const ParameterRecord& parameter);

}  // namespace unishard::trainer::detail
