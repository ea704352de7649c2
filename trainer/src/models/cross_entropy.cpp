#include "models/cross_entropy.hpp"

#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
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
#include <optional>
#include <utility>

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
    const at::Tensor log_probabilities =
        at::_log_softmax(logits.narrow(0, begin, count).to(at::kFloat), 1, /*half_to_float=*/false);
    visit(begin, count, log_probabilities);
  }
}

/// The gradient of the logits, which is written some rows at a time.
class GradientParts {
 public:
  /// `factor` is the gradient of the loss.
  GradientParts(const at::Tensor& logits, at::Tensor targets, at::Tensor factor)
      : targets_(std::move(targets)),
        factor_(std::move(factor)),
        total_(at::full({}, static_cast<double>(logits.size(0)), factor_.options())),
        result_(at::empty_like(logits)) {}

  void write(std::int64_t begin, std::int64_t count, const at::Tensor& log_probabilities) {
    const at::Tensor picked =
        at::nll_loss_backward(factor_, log_probabilities, targets_.narrow(0, begin, count), {},
                              at::Reduction::Mean, kIgnored, total_);
    at::Tensor rows = result_.narrow(0, begin, count);
    if (rows.scalar_type() == at::kFloat) {
      at::_log_softmax_backward_data_out(rows, picked, log_probabilities, 1, at::kFloat);
    } else {
      rows.copy_(at::_log_softmax_backward_data(picked, log_probabilities, 1, at::kFloat));
    }
  }

  const at::Tensor& result() const { return result_; }

 private:
  at::Tensor targets_, factor_, total_, result_;
};

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  /// The rows' own losses are those of a vocabulary of one word, so LibTorch adds them up as it
  /// does without parts.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& targets, const LossOptions& how, bool along) {
    const auto options = logits.options().dtype(at::kFloat).requires_grad(false);
    const at::Tensor picked = at::empty({logits.size(0), 1}, options);
    std::optional<GradientParts> gradient;
    if (along) gradient.emplace(logits, targets, how.expected_gradient.clone());
    visit_parts(
        logits, how.rows,
        [&](std::int64_t begin, std::int64_t count, const at::Tensor& log_probabilities) {
          picked.narrow(0, begin, count)
              .copy_(log_probabilities.gather(1, targets.narrow(0, begin, count).unsqueeze(1)));
          if (gradient) gradient->write(begin, count, log_probabilities);
        });
    context->save_for_backward({logits, targets, gradient ? gradient->result() : at::Tensor()});
    context->saved_data["rows"] = how.rows;
    context->saved_data["expected"] = how.expected_gradient;
    context->saved_data["assumed"] = along ? how.expected_gradient.item<double>() : 0;
    return at::nll_loss(picked, at::zeros_like(targets));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &logits = saved[0], &factor = gradients[0], &of_logits = saved[2];
    if (const at::Tensor expected = context->saved_data["expected"].toTensor();
        expected.defined() && factor.device().is_cpu())
      expected.copy_(factor.detach());
    if (of_logits.defined() && factor.item<double>() == context->saved_data["assumed"].toDouble())
      return result_of(of_logits);
    GradientParts gradient(logits, saved[1], factor);
    visit_parts(logits, context->saved_data["rows"].toInt(),
                [&](auto... part) { gradient.write(part...); });
    return result_of(gradient.result());
  }

 private:
  static variable_list result_of(const at::Tensor& gradient) {
    return {gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor cross_entropy_in_parts(const at::Tensor& logits, const at::Tensor& targets,
                                  const LossOptions& options) {
  LossOptions how = options;
  if (how.rows == 0) {
    how.rows = kPartElements / std::max<std::int64_t>(logits.size(1), 1);
    how.rows = std::max(how.rows / kAlignedRows, std::int64_t{1}) * kAlignedRows;
  }
  const bool along = how.expected_gradient.defined() && logits.device().is_cpu() &&
                     logits.requires_grad() && at::GradMode::is_enabled();
  return CrossEntropy::apply(logits, targets, how, along);
}

}  // namespace unishard::trainer::detail
