#include "unishard/trainer/optimizer.hpp"

#include "unishard/format/error.hpp"

#include "optimizer/host_update.hpp"

#include <algorithm>
#include <array>
#include <cctype>

namespace unishard::trainer {
namespace {

constexpr std::array<std::string_view, 7> kNames{"Adam",    "AdamW", "SGD", "Lion",
                                                 "Adagrad", "Lamb",  "Muon"};
const std::vector<std::string> kLambStates{"exp_avg", "exp_avg_sq"};
const std::vector<std::string> kMuonStates{"momentum_buffer"};

bool same_name(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return std::ranges::equal(a, b, {}, lower, lower);
}

}  // namespace

std::string_view name_of(NewtonSchulz method) {
  return method == NewtonSchulz::Standard ? "standard" : "gram";
}

std::span<const std::string_view> optimizer_names() { return kNames; }

void Optimizer::update(const Hyper& hyper, std::int64_t step, float gradient_scale,
                       std::span<float> weights, std::span<const float> gradients,
                       std::span<const std::span<float>> states) const {
  detail::update_on_host(detail::rule_for(*this, hyper, step, gradient_scale),
                         detail::arrays_of(weights, gradients, states));
}

std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const Hyper& hyper) {
  using enum OptimizerKind;
  using Names = std::vector<std::string>;
  if (same_name(name, "Adam") || same_name(name, "AdamW")) {
    return std::make_unique<Optimizer>(Adam, hyper.decoupled_decay ? "AdamW" : "Adam",
                                       Names{"exp_avg", "exp_avg_sq"});
  }
  if (same_name(name, "SGD")) {
    return std::make_unique<Optimizer>(Sgd, "SGD",
                                       hyper.momentum > 0 ? Names{"momentum_buffer"} : Names{});
  }
  if (same_name(name, "Lion")) return std::make_unique<Optimizer>(Lion, "Lion", Names{"exp_avg"});
  if (same_name(name, "Adagrad"))
    return std::make_unique<Optimizer>(Adagrad, "Adagrad", Names{"sum"});
  if (same_name(name, "Lamb")) return std::make_unique<Optimizer>(Lamb, "Lamb", kLambStates);
  if (same_name(name, "Muon")) return std::make_unique<Optimizer>(Muon, "Muon", kMuonStates);
  std::string known;
  for (const std::string_view each : kNames)
    known += (known.empty() ? "" : ", ") + std::string(each);
  raise(ErrorCode::InvalidArgument, "optimizer " + quote(name) + " is not supported",
        "known: " + known);
}

Optimizer lamb_step() { return {OptimizerKind::LambStep, "Lamb", kLambStates}; }

Optimizer muon_step() { return {OptimizerKind::MuonStep, "Muon", kMuonStates}; }

double lamb_ratio(const Hyper& hyper, double weight_norm, double update_norm) {
  if (weight_norm == 0 || update_norm == 0) return 1;
  return std::clamp(weight_norm / update_norm, hyper.min_coeff, hyper.max_coeff);
}

}  // namespace unishard::trainer
