#pragma once
// The loss of a language model for large vocabularies.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace unishard::trainer::detail {

struct LossOptions {
  /// The gradient of the loss that is expected: a number in fp32 of the host, to which the backward
  /// pass writes the gradient that came. Undefined: none is expected.
  at::Tensor expected_gradient = {};
  std::int64_t rows = 0;  ///< in a part; 0: as many as have at most 256 MiB
};

/// Returns at::cross_entropy_loss(logits.to(at::kFloat), targets) with the same bits of value and
/// gradient. Rows are widened some at a time, so there is no fp32 copy of all logits: of 8,192 rows
/// and a vocabulary of 65,536 it has 2.1 GB. `logits` has two dimensions, `targets` one.
///
/// On the host the gradient of the logits is computed along with the loss, from the same
/// probabilities, and the backward pass gives it out if the expected gradient comes. Else, and on
/// devices, which would have to wait to see the gradient, it widens the rows again.
at::Tensor cross_entropy_in_parts(const at::Tensor& logits, const at::Tensor& targets,
                                  const LossOptions& options = {});

}  // namespace unishard::trainer::detail
