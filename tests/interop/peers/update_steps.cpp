// The trainer's schedules and optimizers for update_rules.py. Reads a line of JSON for each run:
//   {"config": {...}, "steps": N, "weights": [...], "gradients": [[...], ...]}
// and writes a line: {"rates": one for each step, "betas": one pair for each step, "weights": those
// after the last step}. Without "weights" there is no update.
#include "unishard/format/error.hpp"
#include "unishard/trainer/config.hpp"
#include "unishard/trainer/optimizer.hpp"

#include "optimizer/rules.hpp"

#include <cmath>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace unishard;
using namespace unishard::trainer;

class Run {
 public:
  explicit Run(const Json& order)
      : config_(parse_config(order["config"])),
        optimizer_(make_optimizer(config_.optimizer, config_.hyper)),
        weights_(order.value("weights", std::vector<float>{})),
        states_(optimizer_->state_names().size(), std::vector<float>(weights_.size())) {}

  Json result(const Json& order) {
    Json out = {{"rates", Json::array()}, {"betas", Json::array()}};
    for (std::int64_t step = 0; step < order["steps"].get<std::int64_t>(); ++step) {
      Hyper hyper = config_.hyper;
      hyper.lr = learning_rate(config_.schedule, step - 1, hyper.lr);
      const auto betas = scheduled_betas(config_.schedule, step - 1, {hyper.beta1, hyper.beta2});
      hyper.beta1 = betas[0];
      hyper.beta2 = betas[1];
      out["rates"].push_back(hyper.lr);
      out["betas"].push_back(betas);
      if (!weights_.empty())
        update(hyper, step + 1,
               order["gradients"][static_cast<std::size_t>(step)].get<std::vector<float>>());
    }
    out["weights"] = weights_;
    return out;
  }

 private:
  void update(const Hyper& hyper, std::int64_t step, const std::vector<float>& gradients) {
    std::vector<std::span<float>> states(states_.begin(), states_.end());
    optimizer_->update(hyper, step, 1, weights_, gradients, states);
    if (optimizer_->kind() == OptimizerKind::Lamb) take_lamb_step(hyper, step, gradients, states);
  }

  /// The weights are one parameter.
  void take_lamb_step(Hyper hyper, std::int64_t step, const std::vector<float>& gradients,
                      const std::vector<std::span<float>>& states) {
    const detail::LambStepRule rule(hyper, step, 1);
    double weights = 0, updates = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const double weight = weights_[i];
      const double update = rule.direction(weights_[i], states[0][i], states[1][i]);
      weights += weight * weight;
      updates += update * update;
    }
    hyper.lr *= lamb_ratio(hyper, std::sqrt(weights), std::sqrt(updates));
    lamb_step().update(hyper, step, 1, weights_, gradients, states);
  }

  Config config_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<float> weights_;
  std::vector<std::vector<float>> states_;
};

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) {
      const Json order = parse_json(line, "a run");
      std::cout << Run(order).result(order).dump() << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "update_steps: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
