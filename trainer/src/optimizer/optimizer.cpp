#include "unishard/trainer/optimizer.hpp"

#include "optimizer/host_update.hpp"

#include <algorithm>

namespace unishard::trainer {

std::string_view name_of(NewtonSchulz method) {
  return method == NewtonSchulz::Standard ? "standard" : "gram";
}

void Optimizer::update(const Hyper& hyper, std::int64_t step, float gradient_scale,
                       std::span<float> weights, std::span<const float> gradients,
                       std::span<const std::span<float>> states) const {
  detail::update_on_host(detail::rule_for(*this, hyper, step, gradient_scale),
                         detail::arrays_of(weights, gradients, states));
}

std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const Hyper& hyper) {
  const OptimizerKind kind = optimizer_kind(name);
  return std::make_unique<Optimizer>(kind, optimizer_name(kind, hyper),
                                     optimizer_state_names(kind, hyper));
}

Optimizer lamb_step() {
  return {OptimizerKind::LambStep, "Lamb", optimizer_state_names(OptimizerKind::Lamb, {})};
}

Optimizer muon_step() {
  return {OptimizerKind::MuonStep, "Muon", optimizer_state_names(OptimizerKind::Muon, {})};
}

double lamb_ratio(const Hyper& hyper, double weight_norm, double update_norm) {
  if (weight_norm == 0 || update_norm == 0) return 1;
  return std::clamp(weight_norm / update_norm, hyper.min_coeff, hyper.max_coeff);
}

}  // namespace unishard::trainer
