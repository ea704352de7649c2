#pragma once
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/runtime.hpp"

#include "state/training_state.hpp"

namespace unishard::trainer::detail {

/// Does what update_units() does, for Lamb: the moments of every parameter, the norms of the
/// parameters and of their updates over all ranks, then the steps. The bits are the same for every
/// world size and stage. Collective.
void update_with_lamb(TrainingState& state, Runtime& runtime, Communicator& communicator,
                      double gradient_norm);

}  // namespace unishard::trainer::detail
