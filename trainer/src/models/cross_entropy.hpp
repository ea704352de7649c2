#pragma once
// The loss of a language model for large vocabularies.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace unishard::trainer::detail {

/// Returns at::cross_entropy_loss(logits.to(at::kFloat), targets) with the same bits of value and
/// gradient. Rows are widened `rows` at a time, in the forward and again in the backward pass, so
/// there is no fp32 copy of all logits: of 8,192 rows and a vocabulary of 65,536 it has 2.1 GB.
/// `logits` has two dimensions, `targets` one. `rows` = 0 chooses parts of at most 256 MiB.
at::Tensor cross_entropy_in_parts(const at::Tensor& logits, const at::Tensor& targets,
                                  std::int64_t rows = 0);

}  // namespace unishard::trainer::detail
