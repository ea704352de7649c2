#include "optimizer/rules.hpp"

namespace unishard::trainer::detail {
namespace {

float narrow(double value) { return static_cast<float>(value); }

/// Returns the part of a running average that has come in by `step`.
double warmth(const Hyper& hyper, double beta, std::int64_t step) {
  return hyper.bias_correction ? 1 - std::pow(beta, static_cast<double>(step)) : 1;
}

}  // namespace

AdamRule::AdamRule(const Hyper& hyper, std::int64_t step, float scale)
    : gradient_scale(scale),
      beta1(narrow(hyper.beta1)),
      beta2(narrow(hyper.beta2)),
      rest1(narrow(1 - hyper.beta1)),
      rest2(narrow(1 - hyper.beta2)),
      eps(narrow(hyper.eps)),
      step_size(narrow(hyper.lr / warmth(hyper, hyper.beta1, step))),
      root2(narrow(std::sqrt(warmth(hyper, hyper.beta2, step)))),
      keep(narrow(hyper.decoupled_decay ? 1 - hyper.lr * hyper.weight_decay : 1)),
      l2(narrow(hyper.decoupled_decay ? 0 : hyper.weight_decay)) {}

SgdRule::SgdRule(const Hyper& hyper, std::int64_t, float scale)
    : gradient_scale(scale), lr(narrow(hyper.lr)), decay(narrow(hyper.weight_decay)) {}

MomentumRule::MomentumRule(const Hyper& hyper, std::int64_t step, float scale)
    : gradient_scale(scale),
      lr(narrow(hyper.lr)),
      decay(narrow(hyper.weight_decay)),
      momentum(narrow(hyper.momentum)),
      fresh(narrow(step == 1 ? 1 : 1 - hyper.dampening)),
      nesterov(hyper.nesterov) {}

LionRule::LionRule(const Hyper& hyper, std::int64_t, float scale)
    : gradient_scale(scale),
      beta1(narrow(hyper.beta1)),
      beta2(narrow(hyper.beta2)),
      rest1(narrow(1 - hyper.beta1)),
      rest2(narrow(1 - hyper.beta2)),
      keep(narrow(1 - hyper.lr * hyper.weight_decay)),
      lr(narrow(hyper.lr)) {}

AdagradRule::AdagradRule(const Hyper& hyper, std::int64_t step, float scale)
    : gradient_scale(scale),
      lr(narrow(hyper.lr / (1 + static_cast<double>(step - 1) * hyper.lr_decay))),
      decay(narrow(hyper.weight_decay)),
      eps(narrow(hyper.eps)) {}

LambMomentsRule::LambMomentsRule(const Hyper& hyper, std::int64_t, float scale)
    : gradient_scale(scale),
      beta1(narrow(hyper.beta1)),
      beta2(narrow(hyper.beta2)),
      rest1(narrow(1 - hyper.beta1)),
      rest2(narrow(1 - hyper.beta2)) {}

LambStepRule::LambStepRule(const Hyper& hyper, std::int64_t step, float)
    : eps(narrow(hyper.eps)),
      decay(narrow(hyper.weight_decay)),
      step_size(narrow(hyper.lr * std::sqrt(warmth(hyper, hyper.beta2, step)) /
                       warmth(hyper, hyper.beta1, step))) {}

MuonMomentumRule::MuonMomentumRule(const Hyper& hyper, std::int64_t, float scale)
    : gradient_scale(scale), beta(narrow(hyper.momentum)), fresh(narrow(1 - hyper.momentum)) {}

MuonStepRule::MuonStepRule(const Hyper& hyper, std::int64_t, float scale)
    : gradient_scale(scale),
      keep(narrow(1 - hyper.lr * hyper.weight_decay)),
      lr(narrow(hyper.lr)) {}

Rule rule_for(const Optimizer& optimizer, const Hyper& hyper, std::int64_t step, float scale) {
  switch (optimizer.kind()) {
    case OptimizerKind::Adam:
      return AdamRule(hyper, step, scale);
    case OptimizerKind::Sgd:
      if (optimizer.state_names().empty()) return SgdRule(hyper, step, scale);
      return MomentumRule(hyper, step, scale);
    case OptimizerKind::Lion:
      return LionRule(hyper, step, scale);
    case OptimizerKind::Lamb:
      return LambMomentsRule(hyper, step, scale);
    case OptimizerKind::LambStep:
      return LambStepRule(hyper, step, scale);
    case OptimizerKind::Muon:
      return MuonMomentumRule(hyper, step, scale);
    case OptimizerKind::MuonStep:
      return MuonStepRule(hyper, step, scale);
    case OptimizerKind::Adagrad:
      break;
  }
  return AdagradRule(hyper, step, scale);
}

}  // namespace unishard::trainer::detail
