#pragma once
// The update rules as plain loops, as they were before they became functors for host and device.
// What the optimizers compute is defined here, to the bit.
#include "unishard/trainer/optimizer.hpp"

#include <cmath>
#include <cstdint>
#include <span>

namespace unishard::trainer::test {

using States = std::span<const std::span<float>>;

inline void reference_adam(const Hyper& hyper, std::int64_t step, float gradient_scale,
                           std::span<float> weights, std::span<const float> gradients,
                           States states) {
  const auto count = static_cast<double>(step);
  const double correction1 = hyper.bias_correction ? 1 - std::pow(hyper.beta1, count) : 1;
  const double correction2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, count) : 1;
  const auto beta1 = static_cast<float>(hyper.beta1);
  const auto beta2 = static_cast<float>(hyper.beta2);
  const auto rest1 = static_cast<float>(1 - hyper.beta1);
  const auto rest2 = static_cast<float>(1 - hyper.beta2);
  const auto eps = static_cast<float>(hyper.eps);
  const auto step_size = static_cast<float>(hyper.lr / correction1);
  const auto root2 = static_cast<float>(std::sqrt(correction2));
  const auto keep =
      static_cast<float>(hyper.decoupled_decay ? 1 - hyper.lr * hyper.weight_decay : 1);
  const auto l2 = static_cast<float>(hyper.decoupled_decay ? 0 : hyper.weight_decay);
  float* const w = weights.data();
  const float* const g = gradients.data();
  float* const m = states[0].data();
  float* const v = states[1].data();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float gradient = g[i] * gradient_scale + l2 * w[i];
    m[i] = beta1 * m[i] + rest1 * gradient;
    v[i] = beta2 * v[i] + rest2 * gradient * gradient;
    w[i] = w[i] * keep - step_size * (m[i] / (std::sqrt(v[i]) / root2 + eps));
  }
}

inline void reference_sgd(const Hyper& hyper, std::int64_t step, float gradient_scale,
                          std::span<float> weights, std::span<const float> gradients,
                          States states) {
  const auto lr = static_cast<float>(hyper.lr);
  const auto decay = static_cast<float>(hyper.weight_decay);
  const auto momentum = static_cast<float>(hyper.momentum);
  const auto fresh = static_cast<float>(step == 1 ? 1 : 1 - hyper.dampening);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    float direction = gradients[i] * gradient_scale + decay * weights[i];
    if (!states.empty()) {
      float& buffer = states[0][i];
      buffer = momentum * buffer + fresh * direction;
      direction = hyper.nesterov ? direction + momentum * buffer : buffer;
    }
    weights[i] -= lr * direction;
  }
}

inline void reference_lion(const Hyper& hyper, std::int64_t, float gradient_scale,
                           std::span<float> weights, std::span<const float> gradients,
                           States states) {
  const auto beta1 = static_cast<float>(hyper.beta1);
  const auto beta2 = static_cast<float>(hyper.beta2);
  const auto rest1 = static_cast<float>(1 - hyper.beta1);
  const auto rest2 = static_cast<float>(1 - hyper.beta2);
  const auto keep = static_cast<float>(1 - hyper.lr * hyper.weight_decay);
  const auto lr = static_cast<float>(hyper.lr);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float gradient = gradients[i] * gradient_scale;
    float& average = states[0][i];
    const float direction = beta1 * average + rest1 * gradient;
    const float sign = static_cast<float>(direction > 0) - static_cast<float>(direction < 0);
    weights[i] = weights[i] * keep - lr * sign;
    average = beta2 * average + rest2 * gradient;
  }
}

inline void reference_adagrad(const Hyper& hyper, std::int64_t step, float gradient_scale,
                              std::span<float> weights, std::span<const float> gradients,
                              States states) {
  const auto lr =
      static_cast<float>(hyper.lr / (1 + static_cast<double>(step - 1) * hyper.lr_decay));
  const auto decay = static_cast<float>(hyper.weight_decay);
  const auto eps = static_cast<float>(hyper.eps);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float gradient = gradients[i] * gradient_scale + decay * weights[i];
    float& sum = states[0][i];
    sum += gradient * gradient;
    weights[i] -= lr * (gradient / (std::sqrt(sum) + eps));
  }
}

inline void reference_lamb_moments(const Hyper& hyper, float gradient_scale,
                                   std::span<const float> gradients, States states) {
  const auto beta1 = static_cast<float>(hyper.beta1);
  const auto beta2 = static_cast<float>(hyper.beta2);
  const auto rest1 = static_cast<float>(1 - hyper.beta1);
  const auto rest2 = static_cast<float>(1 - hyper.beta2);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const float gradient = gradients[i] * gradient_scale;
    states[0][i] = beta1 * states[0][i] + rest1 * gradient;
    states[1][i] = beta2 * states[1][i] + rest2 * gradient * gradient;
  }
}

inline void reference_lamb_step(const Hyper& hyper, std::int64_t step, std::span<float> weights,
                                States states) {
  const auto count = static_cast<double>(step);
  const double correction1 = hyper.bias_correction ? 1 - std::pow(hyper.beta1, count) : 1;
  const double correction2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, count) : 1;
  const auto step_size = static_cast<float>(hyper.lr * std::sqrt(correction2) / correction1);
  const auto eps = static_cast<float>(hyper.eps);
  const auto decay = static_cast<float>(hyper.weight_decay);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float update = states[0][i] / (std::sqrt(states[1][i]) + eps) + decay * weights[i];
    weights[i] -= step_size * update;
  }
}

inline float reference_lerp(float from, float to, float weight) {
  return weight < 0.5F ? from + weight * (to - from) : to - (to - from) * (1 - weight);
}

inline void reference_muon_momentum(const Hyper& hyper, float gradient_scale,
                                    std::span<float> weights, std::span<const float> gradients,
                                    States states) {
  const auto beta = static_cast<float>(hyper.momentum);
  const auto fresh = static_cast<float>(1 - hyper.momentum);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float gradient = gradients[i] * gradient_scale;
    float& momentum = states[0][i];
    momentum = reference_lerp(momentum, gradient, fresh);
    weights[i] = reference_lerp(gradient, momentum, beta);
  }
}

inline void reference_muon_step(const Hyper& hyper, float gradient_scale, std::span<float> weights,
                                std::span<const float> gradients) {
  const auto keep = static_cast<float>(1 - hyper.lr * hyper.weight_decay);
  const auto lr = static_cast<float>(hyper.lr);
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = weights[i] * keep - lr * (gradients[i] * gradient_scale);
}

inline void reference_update(const Optimizer& optimizer, const Hyper& hyper, std::int64_t step,
                             float gradient_scale, std::span<float> weights,
                             std::span<const float> gradients, States states) {
  switch (optimizer.kind()) {
    case OptimizerKind::Adam:
      return reference_adam(hyper, step, gradient_scale, weights, gradients, states);
    case OptimizerKind::Sgd:
      return reference_sgd(hyper, step, gradient_scale, weights, gradients, states);
    case OptimizerKind::Lion:
      return reference_lion(hyper, step, gradient_scale, weights, gradients, states);
    case OptimizerKind::Adagrad:
      return reference_adagrad(hyper, step, gradient_scale, weights, gradients, states);
    case OptimizerKind::Lamb:
      return reference_lamb_moments(hyper, gradient_scale, gradients, states);
    case OptimizerKind::LambStep:
      return reference_lamb_step(hyper, step, weights, states);
    case OptimizerKind::Muon:
      return reference_muon_momentum(hyper, gradient_scale, weights, gradients, states);
    case OptimizerKind::MuonStep:
      return reference_muon_step(hyper, gradient_scale, weights, gradients);
  }
}

}  // namespace unishard::trainer::test
