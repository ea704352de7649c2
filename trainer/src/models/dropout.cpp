#include "unishard/trainer/dropout.hpp"

#include "unishard/format/error.hpp"

#include "state/dropout_source.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_dropout_backward.h>
#include <torch/csrc/autograd/custom_function.h>

namespace unishard::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// x * mask * scale. LibTorch's gradient of dropout is the same product, in one kernel on a device.
class MaskedProduct : public torch::autograd::Function<MaskedProduct> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& mask,
                            double scale) {
    context->save_for_backward({mask});
    context->saved_data["scale"] = scale;
    return at::native_dropout_backward(x, mask, scale);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {at::native_dropout_backward(gradients[0], context->get_saved_variables()[0],
                                        context->saved_data["scale"].toDouble()),
            at::Tensor(), at::Tensor()};
  }
};

/// Returns which elements of x are kept.
at::Tensor draw_mask(const at::Tensor& x, double p) {
  const at::NoGradGuard no_grad;
  at::Generator* const generator = detail::dropout_source().generator;
  const at::Device drawn_on = generator ? generator->device() : x.device();
  at::Tensor mask = at::empty(x.sizes(), at::device(drawn_on).dtype(at::kBool));
  if (generator) {
    mask.bernoulli_(1 - p, *generator);
  } else {
    mask.bernoulli_(1 - p);
  }
  return mask.to(x.device());
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p) {
  if (p < 0 || p >= 1)
    raise(ErrorCode::InvalidArgument, "dropout: the probability must be 0 up to 1");
  return p == 0 ? x : MaskedProduct::apply(x, draw_mask(x, p), 1 / (1 - p));
}

}  // namespace unishard::trainer
