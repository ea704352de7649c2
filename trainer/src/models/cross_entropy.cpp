#include "models/cross_entropy.hpp"

#include <ATen/core/Reduction.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace unishard::trainer::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kPartElements = std::int64_t{64} << 20;
/// The address of a row, to which the order of sums of CUDA's kernels adapts, is aligned in a part
/// as it is in the whole.
constexpr std::int64_t kAlignedRows = 64;
constexpr std::int64_t kIgnored = -100;  // LibTorch's default; no token has it

/// Calls visit(begin, count, log-probabilities of those rows in fp32).
template <class Visit>
void visit_parts(const at::Tensor& logits, std::int64_t rows, const Visit& visit) {
  for (std::int64_t begin = 0; begin < logits.size(0); begin += rows) {
    const std::int64_t count = std::min(rows, logits.size(0) - begin);
    const at::Tensor part = logits.narrow(0, begin, count).to(at::kFloat);
    visit(begin, count, at::_log_softmax(part, 1, /*half_to_float=*/false));
  }
}

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  /// The rows' own losses are those of a vocabulary of one word, so LibTorch adds them up as it
  /// does without parts.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& targets, std::int64_t rows) {
    const at::Tensor picked =
        at::empty({logits.size(0), 1}, logits.options().dtype(at::kFloat).requires_grad(false));
    visit_parts(
        logits, rows,
        [&](std::int64_t begin, std::int64_t count, const at::Tensor& log_probabilities) {
          picked.narrow(0, begin, count)
              .copy_(log_probabilities.gather(1, targets.narrow(0, begin, count).unsqueeze(1)));
        });
    context->save_for_backward({logits, targets});
    context->saved_data["rows"] = rows;
    return at::nll_loss(picked, at::zeros_like(targets));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &logits = saved[0], &targets = saved[1];
    const at::Tensor total =
        at::full({}, static_cast<double>(logits.size(0)), gradients[0].options());
    const at::Tensor result = at::empty_like(logits);
    visit_parts(
        logits, context->saved_data["rows"].toInt(),
        [&](std::int64_t begin, std::int64_t count, const at::Tensor& log_probabilities) {
          const at::Tensor picked = at::nll_loss_backward(gradients[0], log_probabilities,
                                                          targets.narrow(0, begin, count), {},
                                                          at::Reduction::Mean, kIgnored, total);
          result.narrow(0, begin, count)
              .copy_(at::_log_softmax_backward_data(picked, log_probabilities, 1, at::kFloat));
        });
    return {result, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor cross_entropy_in_parts(const at::Tensor& logits, const at::Tensor& targets,
                                  std::int64_t rows) {
  if (rows == 0) {
    rows = kPartElements / std::max<std::int64_t>(logits.size(1), 1);
    rows = std::max(rows / kAlignedRows, std::int64_t{1}) * kAlignedRows;
  }
  return CrossEntropy::apply(logits, targets, rows);
}

}  // namespace unishard::trainer::detail
