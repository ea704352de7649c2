#pragma once
// The dropout of the language models.
#include <ATen/core/Tensor.h>

namespace unishard::trainer::detail {

/// Does what dropout() does, with the same masks, which have one byte for each element. The
/// backward pass keeps the mask alone. Throws: InvalidArgument unless 0 <= p < 1.
at::Tensor dropout_by_mask(const at::Tensor& x, double p);

}  // namespace unishard::trainer::detail
