#pragma once
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/runtime.hpp"

#include "comm/tensor_collectives.hpp"
#include "state/training_state.hpp"

namespace unishard::trainer::detail {

/// Does what update_units() does, for Muon. The norm by which gradients are clipped, which it
/// returns without the loss scale, is that of the matrices' orthogonal updates and of the other
/// parameters' gradients, as in DeepSpeed's ZeRO. The bits are the same for every world size and
/// stage. Collective.
/// Pre: the gradients are finite.
double update_with_muon(TrainingState& state, Runtime& runtime, TensorCollectives& collectives,
                        Communicator& communicator);

}  // namespace unishard::trainer::detail
