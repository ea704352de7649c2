#include "unishard/format/error.hpp"
#include "unishard/trainer/optimizer.hpp"

#include <algorithm>
#include <array>
#include <cctype>

namespace unishard::trainer {
namespace {

struct NamedKind {
  std::string_view name;
  OptimizerKind kind;
};
constexpr std::array kKinds{
    NamedKind{"Adam", OptimizerKind::Adam},       NamedKind{"AdamW", OptimizerKind::Adam},
    NamedKind{"SGD", OptimizerKind::Sgd},         NamedKind{"Lion", OptimizerKind::Lion},
    NamedKind{"Adagrad", OptimizerKind::Adagrad}, NamedKind{"Lamb", OptimizerKind::Lamb},
    NamedKind{"Muon", OptimizerKind::Muon}};

bool same_name(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return std::ranges::equal(a, b, {}, lower, lower);
}

}  // namespace

OptimizerKind optimizer_kind(std::string_view name) {
  std::string known;
  for (const NamedKind& each : kKinds) {
    if (same_name(name, each.name)) return each.kind;
    known += (known.empty() ? "" : ", ") + std::string(each.name);
  }
  raise(ErrorCode::InvalidArgument, "optimizer " + quote(name) + " is not supported",
        "known: " + known);
}

std::string_view optimizer_name(OptimizerKind kind, const Hyper& hyper) {
  if (kind == OptimizerKind::Adam) return hyper.decoupled_decay ? "AdamW" : "Adam";
  return std::ranges::find(kKinds, kind, &NamedKind::kind)->name;
}

std::vector<std::string> optimizer_state_names(OptimizerKind kind, const Hyper& hyper) {
  switch (kind) {
    case OptimizerKind::Sgd:
      if (hyper.momentum > 0) return {"momentum_buffer"};
      return {};
    case OptimizerKind::Lion:
      return {"exp_avg"};
    case OptimizerKind::Adagrad:
      return {"sum"};
    case OptimizerKind::Muon:
    case OptimizerKind::MuonStep:
      return {"momentum_buffer"};
    case OptimizerKind::Adam:
    case OptimizerKind::Lamb:
    case OptimizerKind::LambStep:
      break;
  }
  return {"exp_avg", "exp_avg_sq"};
}

}  // namespace unishard::trainer
