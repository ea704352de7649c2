// The trainer's schedules and optimizers for update_rules.py. Reads a line of JSON for each run:
//   {"config": {...}, "steps": N, "weights": [...], "gradients": [[...], ...]}
// With "shape", Muon's weights are a matrix of this shape; with "adam", they are parameters that
// Muon leaves to Adam. It writes a line: {"rates": one for each step, "betas": one pair for each
// step, "weights": those after the last step}. Without "weights" there is no update.
#include "unishard/format/error.hpp"
#include "unishard/trainer/config.hpp"
#include "unishard/trainer/optimizer.hpp"

#include "device/tensor_bytes.hpp"
#include "engine/newton_schulz.hpp"
#include "optimizer/rules.hpp"

#include <ATen/ops/from_blob.h>

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
        hyper_(order.value("adam", false) ? config_.adam : config_.hyper),
        optimizer_(make_optimizer(order.value("adam", false) ? "Adam" : config_.optimizer, hyper_)),
        shape_(order.value("shape", std::vector<std::int64_t>{})),
        weights_(order.value("weights", std::vector<float>{})),
        states_(optimizer_->state_names().size(), std::vector<float>(weights_.size())) {}

  Json result(const Json& order) {
    Json out = {{"rates", Json::array()}, {"betas", Json::array()}};
    for (std::int64_t step = 0; step < order["steps"].get<std::int64_t>(); ++step) {
      Hyper hyper = hyper_;
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
    if (optimizer_->kind() == OptimizerKind::Muon)
      return take_muon_step(hyper, step, gradients, states);
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

  /// The weights are one matrix.
  void take_muon_step(const Hyper& hyper, std::int64_t step, const std::vector<float>& gradients,
                      const std::vector<std::span<float>>& states) {
    std::vector<float> blend(weights_.size());
    optimizer_->update(hyper, step, 1, blend, gradients, states);
    const at::Tensor update =
        detail::newton_schulz(at::from_blob(blend.data(), shape_, at::kFloat), hyper.ns_method);
    muon_step().update(hyper, step, 1, weights_, detail::floats_of(update), states);
  }

  Config config_;
  Hyper hyper_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::int64_t> shape_;
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
