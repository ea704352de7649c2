// Adam and AdamW as torch.optim computes them: bias corrections on the step size and on the root of
// the second moment, epsilon added after.
#include "optimizer/rules.hpp"

#include <cmath>

namespace unishard::trainer::detail {
namespace {

class Adam final : public Optimizer {
 public:
  explicit Adam(bool decoupled) : name_(decoupled ? "AdamW" : "Adam") {}
  std::string_view name() const override { return name_; }
  const std::vector<std::string>& state_names() const override { return states_; }

  void update(const Hyper& hyper, std::int64_t step, float gradient_scale, std::span<float> weights,
              std::span<const float> gradients,
              std::span<const std::span<float>> states) const override {
    const auto count = static_cast<double>(step);
    const double correction1 = 1 - std::pow(hyper.beta1, count);
    const double correction2 = 1 - std::pow(hyper.beta2, count);
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

 private:
  std::string_view name_;
  std::vector<std::string> states_{"exp_avg", "exp_avg_sq"};
};

}  // namespace

std::unique_ptr<Optimizer> make_adam(const Hyper& hyper) {
  return std::make_unique<Adam>(hyper.decoupled_decay);
}

}  // namespace unishard::trainer::detail
