// Lion (Chen et al. 2023): the sign of an interpolation, with decoupled decay.
#include "optimizer/rules.hpp"

namespace unishard::trainer::detail {
namespace {

class Lion final : public Optimizer {
 public:
  std::string_view name() const override { return "Lion"; }
  const std::vector<std::string>& state_names() const override { return states_; }

  void update(const Hyper& hyper, std::int64_t, float gradient_scale, std::span<float> weights,
              std::span<const float> gradients,
              std::span<const std::span<float>> states) const override {
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

 private:
  std::vector<std::string> states_{"exp_avg"};
};

}  // namespace

std::unique_ptr<Optimizer> make_lion(const Hyper&) { return std::make_unique<Lion>(); }

}  // namespace unishard::trainer::detail
