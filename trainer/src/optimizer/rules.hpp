#pragma once
// The update rules, each written once as a functor on one element. Host and device run this source:
// every operation is an IEEE addition, multiplication, division or root, and both are compiled
// without contraction to fused operations, so results have the same bits everywhere. The payload of
// a NaN is the exception: the processor chooses it.
//
// A rule takes the weight, the gradient and a reference to each state, and returns the new weight.
// Its constructor reduces the hyperparameters to the constants of one step.
// Thread safety: values and pure functions.
#include "unishard/trainer/optimizer.hpp"

#include "device/host_device.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <variant>

namespace unishard::trainer::detail {

/// Adam and AdamW as torch.optim computes them: bias corrections on the step size and on the root
/// of the second moment, epsilon added after.
struct AdamRule {
  static constexpr std::size_t kStates = 2;
  AdamRule(const Hyper& hyper, std::int64_t step, float gradient_scale);

  UNISHARD_HOST_DEVICE float operator()(float weight, float raw, float& exp_avg,
                                        float& exp_avg_sq) const {
    const float gradient = raw * gradient_scale + l2 * weight;
    exp_avg = beta1 * exp_avg + rest1 * gradient;
    exp_avg_sq = beta2 * exp_avg_sq + rest2 * gradient * gradient;
    return weight * keep - step_size * (exp_avg / (std::sqrt(exp_avg_sq) / root2 + eps));
  }

  float gradient_scale, beta1, beta2, rest1, rest2, eps, step_size, root2, keep, l2;
};

/// SGD with L2 decay as torch.optim.SGD, without momentum.
struct SgdRule {
  static constexpr std::size_t kStates = 0;
  SgdRule(const Hyper& hyper, std::int64_t step, float gradient_scale);

  UNISHARD_HOST_DEVICE float operator()(float weight, float raw) const {
    return weight - lr * (raw * gradient_scale + decay * weight);
  }

  float gradient_scale, lr, decay;
};

/// SGD with momentum, dampening and Nesterov: the first step's buffer is the gradient.
struct MomentumRule {
  static constexpr std::size_t kStates = 1;
  MomentumRule(const Hyper& hyper, std::int64_t step, float gradient_scale);

  UNISHARD_HOST_DEVICE float operator()(float weight, float raw, float& buffer) const {
    const float gradient = raw * gradient_scale + decay * weight;
    buffer = momentum * buffer + fresh * gradient;
    return weight - lr * (nesterov ? gradient + momentum * buffer : buffer);
  }

  float gradient_scale, lr, decay, momentum, fresh;
  bool nesterov;
};

/// Lion (Chen et al. 2023): the sign of an interpolation, with decoupled decay.
struct LionRule {
  static constexpr std::size_t kStates = 1;
  LionRule(const Hyper& hyper, std::int64_t step, float gradient_scale);

  UNISHARD_HOST_DEVICE float operator()(float weight, float raw, float& average) const {
    const float gradient = raw * gradient_scale;
    const float direction = beta1 * average + rest1 * gradient;
    const float sign = static_cast<float>(direction > 0) - static_cast<float>(direction < 0);
    average = beta2 * average + rest2 * gradient;
    return weight * keep - lr * sign;
  }

  float gradient_scale, beta1, beta2, rest1, rest2, keep, lr;
};

/// Adagrad as torch.optim.Adagrad, with L2 decay and lr_decay.
struct AdagradRule {
  static constexpr std::size_t kStates = 1;
  AdagradRule(const Hyper& hyper, std::int64_t step, float gradient_scale);

  UNISHARD_HOST_DEVICE float operator()(float weight, float raw, float& sum) const {
    const float gradient = raw * gradient_scale + decay * weight;
    sum = sum + gradient * gradient;
    return weight - lr * (gradient / (std::sqrt(sum) + eps));
  }

  float gradient_scale, lr, decay, eps;
};

/// The moments of Lamb (You et al. 2019), as DeepSpeed's FusedLamb has them.
struct LambMomentsRule {
  static constexpr std::size_t kStates = 2;
  LambMomentsRule(const Hyper& hyper, std::int64_t step, float gradient_scale);

  UNISHARD_HOST_DEVICE float operator()(float weight, float raw, float& exp_avg,
                                        float& exp_avg_sq) const {
    const float gradient = raw * gradient_scale;
    exp_avg = beta1 * exp_avg + rest1 * gradient;
    exp_avg_sq = beta2 * exp_avg_sq + rest2 * gradient * gradient;
    return weight;
  }

  float gradient_scale, beta1, beta2, rest1, rest2;
};

/// The step of Lamb. `step_size` has the ratio of the norms.
struct LambStepRule {
  static constexpr std::size_t kStates = 2;
  LambStepRule(const Hyper& hyper, std::int64_t step, float gradient_scale);

  /// Returns what is subtracted from the weight, but for its factor.
  UNISHARD_HOST_DEVICE float direction(float weight, float exp_avg, float exp_avg_sq) const {
    return exp_avg / (std::sqrt(exp_avg_sq) + eps) + decay * weight;
  }
  UNISHARD_HOST_DEVICE float operator()(float weight, float, float& exp_avg,
                                        float& exp_avg_sq) const {
    return weight - step_size * direction(weight, exp_avg, exp_avg_sq);
  }

  float eps, decay, step_size;
};

/// Returns the point between `from` and `to` at `weight`, as torch.lerp() rounds it.
UNISHARD_HOST_DEVICE inline float interpolate(float from, float to, float weight) {
  return weight < 0.5F ? from + weight * (to - from) : to - (to - from) * (1.0F - weight);
}

/// The momentum of Muon (Jordan et al. 2024) with Nesterov's step, as DeepSpeed has it. The new
/// weight is the value that Newton-Schulz makes orthogonal.
struct MuonMomentumRule {
  static constexpr std::size_t kStates = 1;
  MuonMomentumRule(const Hyper& hyper, std::int64_t step, float gradient_scale);

  UNISHARD_HOST_DEVICE float operator()(float, float raw, float& momentum) const {
    const float gradient = raw * gradient_scale;
    momentum = interpolate(momentum, gradient, fresh);
    return interpolate(gradient, momentum, beta);
  }

  float gradient_scale, beta, fresh;
};

/// The step of Muon. The gradient is the orthogonal update.
struct MuonStepRule {
  static constexpr std::size_t kStates = 1;
  MuonStepRule(const Hyper& hyper, std::int64_t step, float gradient_scale);

  UNISHARD_HOST_DEVICE float operator()(float weight, float update, float&) const {
    return weight * keep - lr * (update * gradient_scale);
  }

  float gradient_scale, keep, lr;
};

using Rule = std::variant<AdamRule, SgdRule, MomentumRule, LionRule, AdagradRule, LambMomentsRule,
                          LambStepRule, MuonMomentumRule, MuonStepRule>;

/// Returns the rule of `optimizer` for one step of one parameter group. `step` counts from 1.
Rule rule_for(const Optimizer& optimizer, const Hyper& hyper, std::int64_t step,
              float gradient_scale);

}  // namespace unishard::trainer::detail
