#pragma once
// Dropout whose masks are a function of (seed, step, global micro-batch, unit) and of nothing else:
// no state to save, and the same masks on every world size.
#include <ATen/core/Tensor.h>

namespace unishard::trainer {

/// Zeroes elements with probability p and scales the others by 1 / (1 - p). Inside a unit or an
/// engine's step the mask comes from the current unit's generator, elsewhere from LibTorch's
/// default one. Call it only while training.
at::Tensor dropout(const at::Tensor& input, double p);

}  // namespace unishard::trainer
