#pragma once
// The norm of the Llama family.
#include <ATen/core/Tensor.h>

namespace unishard::trainer::detail {

/// Scales x, over its last dimension, to a mean square of 1, and multiplies by `weight`. Computes
/// in fp32 and rounds to x's type: before the product with `weight`, or only after it where
/// LibTorch has one kernel for all of it (2.9 and later, on CUDA devices). The backward pass keeps
/// x, `weight` and one number for each row.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

}  // namespace unishard::trainer::detail
