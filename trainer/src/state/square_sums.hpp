#pragma once
// The sums of squares of which the norm of the gradients is made.
#include <ATen/core/Tensor.h>

namespace unishard::trainer::detail {

/// Returns what block_square_sums() computes, as float64 on the gradients' device.
/// Pre: float32, contiguous, one dimension of a multiple of kShardBlock elements.
at::Tensor square_sums(const at::Tensor& gradients);

}  // namespace unishard::trainer::detail
