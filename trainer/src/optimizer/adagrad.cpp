// Adagrad as torch.optim.Adagrad, with L2 decay and lr_decay.
#include "optimizer/rules.hpp"

#include <cmath>

namespace unishard::trainer::detail {
namespace {

class Adagrad final : public Optimizer {
 public:
  std::string_view name() const override { return "Adagrad"; }
  const std::vector<std::string>& state_names() const override { return states_; }

  void update(const Hyper& hyper, std::int64_t step, float gradient_scale, std::span<float> weights,
              std::span<const float> gradients,
              std::span<const std::span<float>> states) const override {
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

 private:
  std::vector<std::string> states_{"sum"};
};

}  // namespace

std::unique_ptr<Optimizer> make_adagrad(const Hyper&) { return std::make_unique<Adagrad>(); }

}  // namespace unishard::trainer::detail
