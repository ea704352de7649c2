#include "models/rms_norm.hpp"

#include <ATen/ops/mul.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#if __has_include(<ATen/ops/_fused_rms_norm_backward.h>)
#include <ATen/ops/rms_norm.h>
#define UNISHARD_HAS_FUSED_RMS_NORM 1
#endif

namespace unishard::trainer::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Its parts in few operators. Autograd would keep an fp32 copy of x and write a tensor of its size
/// for each term of the gradient.
class RmsNormInParts : public torch::autograd::Function<RmsNormInParts> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double epsilon) {
    const at::Tensor wide = x.to(at::kFloat);
    at::Tensor scaled = wide.pow(2);
    const at::Tensor scale = scaled.mean(-1, /*keepdim=*/true).add_(epsilon).rsqrt_();
    at::mul_out(scaled, wide, scale);
    context->save_for_backward({x, weight, scale});
    return weight * scaled.to(x.scalar_type());
  }

  /// The gradient of a layer norm whose mean is 0 has one term more, the mean of gradient * weight,
  /// which is added again.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const std::int64_t width = x.size(-1);
    const auto rows = [&](const at::Tensor& each) {
      return each.reshape({-1, width}).to(at::kFloat);
    };
    const at::Tensor gradient = rows(gradients[0]), wide_weight = weight.to(at::kFloat);
    const at::Tensor scale = saved[2].reshape({-1, 1});
    auto [of_x, of_weight, none] = at::native_layer_norm_backward(
        gradient, rows(x), {width}, at::zeros_like(scale), scale, wide_weight, {},
        {context->needs_input_grad(0), context->needs_input_grad(1), false});
    if (of_x.defined()) {
      const at::Tensor mean = at::mv(gradient, wide_weight).div_(static_cast<double>(width));
      of_x.add_(mean.unsqueeze(1).mul_(scale));
      of_x = of_x.to(x.scalar_type()).view(x.sizes());
    }
    if (of_weight.defined()) of_weight = of_weight.to(weight.scalar_type());
    return {of_x, of_weight, at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
#ifdef UNISHARD_HAS_FUSED_RMS_NORM
  if (x.is_cuda()) return at::rms_norm(x, {x.size(-1)}, weight, epsilon);
#endif
  return RmsNormInParts::apply(x, weight, epsilon);
}

}  // namespace unishard::trainer::detail
