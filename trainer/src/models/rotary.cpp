#include "models/rotary.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace unishard::trainer::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kPi = std::numbers::pi;

/// Returns theta ^ (2i / head width).
at::Tensor wavelengths(double theta, std::int64_t head_width) {
  const at::Tensor exponents =
      at::arange(0, head_width, 2, at::kLong).to(at::kFloat) / static_cast<double>(head_width);
  return at::pow(theta, exponents);
}

/// Stretches the base so that the last frequency fits the context (NTK-aware scaling).
double dynamic_theta(const RotaryConfig& config, double head_width, double positions, double time) {
  const double stretch =
      config.factor * std::max(time, positions) / positions - (config.factor - 1);
  return config.theta * std::pow(stretch, head_width / (head_width - 2));
}

/// Interpolates low frequencies and leaves high ones, with a ramp between (YaRN).
at::Tensor yarn(const RotaryConfig& config, std::int64_t head_width) {
  const auto width = static_cast<double>(head_width);
  const auto original = static_cast<double>(config.original_positions);
  const auto turns_at = [&](double turns) {
    return width * std::log(original / (turns * 2 * kPi)) / (2 * std::log(config.theta));
  };
  double low = turns_at(config.beta_fast), high = turns_at(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  if (low == high) high += 0.001;
  const at::Tensor ramp =
      ((at::arange(head_width / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const at::Tensor waves = wavelengths(config.theta, head_width);
  const at::Tensor kept = 1 - ramp;
  return (config.factor * waves).reciprocal() * (1 - kept) + waves.reciprocal() * kept;
}

at::Tensor long_rope(const RotaryConfig& config, std::int64_t head_width, std::int64_t time) {
  const bool is_long = time > config.original_positions;
  const at::Tensor factors = at::tensor(is_long ? config.long_factor : config.short_factor);
  return (factors.to(at::kFloat) * wavelengths(config.theta, head_width)).reciprocal();
}

/// Divides low frequencies by the factor and leaves high ones, with a ramp between (Llama 3.1).
at::Tensor llama3(const RotaryConfig& config, std::int64_t head_width) {
  const auto original = static_cast<double>(config.original_positions);
  const double low = config.low_frequency_factor, high = config.high_frequency_factor;
  const at::Tensor plain = wavelengths(config.theta, head_width).reciprocal();
  const at::Tensor waves = 2 * kPi / plain;
  const at::Tensor is_low = waves.gt(original / low);
  const at::Tensor is_between = is_low.logical_or(waves.lt(original / high)).logical_not();
  const at::Tensor scaled = at::where(is_low, plain / config.factor, plain);
  const at::Tensor smooth = (original / waves - low) / (high - low);
  return at::where(is_between, (1 - smooth) * scaled / config.factor + smooth * scaled, scaled);
}

/// Adds direction * a * b; direction is 1 or -1. In fp32 the product is rounded before it is added,
/// whether or not the processor could add it unrounded.
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, int direction) {
  if (sum.scalar_type() == at::kFloat) {
    sum.add_(a * b, direction);
  } else {
    sum.addcmul_(a, b, direction);
  }
}

/// Turns the halves of x by the angles of the tables, or back by them where direction is -1.
at::Tensor turned(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                  int direction) {
  const std::int64_t half = x.size(-1) / 2;
  const auto first = [&](const at::Tensor& each) { return each.narrow(-1, 0, half); };
  const auto second = [&](const at::Tensor& each) { return each.narrow(-1, half, half); };
  const at::Tensor result = x * cosines;
  add_product(first(result), second(x), first(sines), -direction);
  add_product(second(result), first(x), second(sines), direction);
  return result;
}

class Turn : public torch::autograd::Function<Turn> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& cosines, const at::Tensor& sines) {
    context->save_for_backward({cosines, sines});
    return turned(x, cosines, sines, 1);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list tables = context->get_saved_variables();
    return {turned(gradients[0], tables[0], tables[1], -1), at::Tensor(), at::Tensor()};
  }
};

double yarn_magnitude(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace

at::Tensor rotary_frequencies(const RotaryConfig& config, std::int64_t head_width,
                              std::int64_t positions, std::int64_t time) {
  switch (config.scaling) {
    case RotaryScaling::Default:
      return wavelengths(config.theta, head_width).reciprocal();
    case RotaryScaling::Linear:
      return wavelengths(config.theta, head_width).reciprocal() / config.factor;
    case RotaryScaling::Dynamic:
      return wavelengths(dynamic_theta(config, static_cast<double>(head_width),
                                       static_cast<double>(positions), static_cast<double>(time)),
                         head_width)
          .reciprocal();
    case RotaryScaling::Yarn:
      return yarn(config, head_width);
    case RotaryScaling::LongRope:
      return long_rope(config, head_width, time);
    case RotaryScaling::Llama3:
      return llama3(config, head_width);
  }
  return {};
}

double rotary_attention_factor(const RotaryConfig& config) {
  if (config.attention_factor) return *config.attention_factor;
  if (config.scaling == RotaryScaling::Yarn) {
    if (config.mscale > 0 && config.mscale_all_dim > 0)
      return yarn_magnitude(config.factor, config.mscale) /
             yarn_magnitude(config.factor, config.mscale_all_dim);
    return yarn_magnitude(config.factor, 1);
  }
  if (config.scaling == RotaryScaling::LongRope && config.factor > 1)
    return std::sqrt(1 + std::log(config.factor) /
                             std::log(static_cast<double>(config.original_positions)));
  return 1;
}

void RotaryEmbedding::prepare(const at::Tensor& x) {
  const std::int64_t time = x.size(2);
  if (cosines_.defined() && cosines_.size(0) == time && cosines_.device() == x.device() &&
      cosines_.scalar_type() == x.scalar_type())
    return;
  const at::NoGradGuard no_grad;
  const at::Tensor frequencies = rotary_frequencies(config_, head_width_, positions_, time);
  const at::Tensor half =
      at::arange(time, at::kLong).to(at::kFloat).unsqueeze(1) * frequencies.unsqueeze(0);
  const at::Tensor angles = at::cat({half, half}, -1);
  const double factor = rotary_attention_factor(config_);
  cosines_ = (angles.cos() * factor).to(x.options());
  sines_ = (angles.sin() * factor).to(x.options());
}

at::Tensor RotaryEmbedding::rotate(const at::Tensor& x) {
  prepare(x);
  return Turn::apply(x, cosines_, sines_);
}

}  // namespace unishard::trainer::detail
