// SGD with momentum, dampening, Nesterov and L2 decay, as torch.optim.SGD: the first step's buffer
// is the gradient.
#include "optimizer/rules.hpp"

namespace unishard::trainer::detail {
namespace {

class Sgd final : public Optimizer {
 public:
  explicit Sgd(bool momentum) {
    if (momentum) states_.emplace_back("momentum_buffer");
  }
  std::string_view name() const override { return "SGD"; }
  const std::vector<std::string>& state_names() const override { return states_; }

  void update(const Hyper& hyper, std::int64_t step, float gradient_scale, std::span<float> weights,
              std::span<const float> gradients,
              std::span<const std::span<float>> states) const override {
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

 private:
  std::vector<std::string> states_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const Hyper& hyper) {
  return std::make_unique<Sgd>(hyper.momentum > 0);
}

}  // namespace unishard::trainer::detail
