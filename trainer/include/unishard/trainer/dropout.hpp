#pragma once
// Dropout whose masks depend only on (seed, step, global micro-batch, unit, use of the unit in the
// micro-batch). There is no state to save, and every world size has the same masks.
#include <ATen/core/Tensor.h>

namespace unishard::trainer {

/// Sets elements to zero with probability `p` and scales the others by 1 / (1 - p). Inside a unit
/// or an engine's step the mask comes from the current unit's generator, elsewhere from LibTorch's
/// default generator.
/// Pre: the model is in training mode.
/// Throws: InvalidArgument unless 0 <= p <= 1.
at::Tensor dropout(const at::Tensor& input, double p);

}  // namespace unishard::trainer
