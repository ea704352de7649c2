#include "unishard/format/error.hpp"

#include "config/flat_config.hpp"
#include "config/key_table.hpp"
#include "config/section_readers.hpp"

#include <algorithm>
#include <array>
#include <cctype>

namespace unishard::trainer::detail {
namespace {

struct TypeDefault {
  std::string_view type, parameter, json;
};

constexpr TypeDefault kTypeDefaults[] = {
    {"adagrad", "lr", "0.01"}, {"adagrad", "eps", "1e-10"},  {"muon", "lr", "0.02"},
    {"muon", "eps", "1e-10"},  {"muon", "momentum", "0.95"}, {"muon", "betas", "[0.9, 0.95]"}};
constexpr double kAdamRateOfMuon = 3e-4;

constexpr std::array<std::string_view, 7> kBuilt{"adam",    "adamw", "sgd", "lion",
                                                 "adagrad", "lamb",  "muon"};
constexpr std::array<std::string_view, 4> kCompressed{"onebitadam", "onebitlamb", "zerooneadam",
                                                      "onebitadamw"};

/// Reads a parameter of the optimizer, or its default for the type.
Json parameter_of(const CheckedConfig& from, std::string_view type, std::string_view name) {
  const std::string path = std::string(kOptimizerParams) + "." + std::string(name);
  if (const Json* given = from.find(path)) return *given;
  if (const auto own = default_of_type(type, name)) return *own;
  return Json::parse(find_config_key(path)->initial);
}

/// Gives each half of the parameters its rate. DeepSpeed lets "lr" stand for one that is not given.
void split_for_muon(const CheckedConfig& from, Config& config) {
  const bool is_standard = from.text("optimizer.params.ns_method") == "standard";
  config.hyper.ns_method = is_standard ? NewtonSchulz::Standard : NewtonSchulz::Gram;
  config.adam = config.hyper;
  const auto shared = from.given_number("optimizer.params.lr");
  config.adam.lr =
      from.given_number("optimizer.params.adam_lr").value_or(shared.value_or(kAdamRateOfMuon));
  config.hyper.lr = from.given_number("optimizer.params.muon_lr").value_or(config.hyper.lr);
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

std::optional<Json> default_of_type(std::string_view type, std::string_view parameter) {
  for (const TypeDefault& each : kTypeDefaults)
    if (each.type == type && each.parameter == parameter) return Json::parse(each.json);
  return std::nullopt;
}

std::string refused_optimizer(std::string_view type) {
  const std::string name = lower_case(type);
  if (std::ranges::find(kBuilt, name) != kBuilt.end()) return "";
  if (std::ranges::find(kCompressed, name) != kCompressed.end())
    return "its communication of single bits changes the result and is not supported";
  return "it is not supported";
}

void read_optimizer(const CheckedConfig& from, Config& config) {
  config.optimizer = from.text("optimizer.type");
  const std::string type = lower_case(config.optimizer);
  if (const std::string reason = refused_optimizer(type); !reason.empty())
    raise(ErrorCode::InvalidArgument,
          "configuration: optimizer.type is " + quote(config.optimizer) + ": " + reason);
  const auto number = [&](std::string_view name) {
    return parameter_of(from, type, name).get<double>();
  };
  const auto boolean = [&](std::string_view name) {
    return parameter_of(from, type, name).get<bool>();
  };
  Hyper& hyper = config.hyper;
  hyper.lr = number("lr");
  hyper.eps = number("eps");
  hyper.weight_decay = number("weight_decay");
  hyper.momentum = number("momentum");
  hyper.dampening = number("dampening");
  hyper.lr_decay = number("lr_decay");
  hyper.nesterov = boolean("nesterov");
  hyper.bias_correction = boolean("bias_correction");
  hyper.max_coeff = number("max_coeff");
  hyper.min_coeff = number("min_coeff");
  const Json betas = parameter_of(from, type, "betas");
  hyper.beta1 = betas[0].get<double>();
  hyper.beta2 = betas[1].get<double>();
  hyper.decoupled_decay = boolean("adam_w_mode");
  if (!hyper.decoupled_decay && type == "adamw") {  // as in DeepSpeed
    hyper.decoupled_decay = true;
    config.notes.emplace_back("optimizer.params.adam_w_mode: has no effect on AdamW");
  }
  if (type == "muon") split_for_muon(from, config);
  if (hyper.nesterov && hyper.momentum <= 0)
    from.refuse("optimizer.params.nesterov", "possible without momentum");
  note_unused(from, kOptimizerParams, type, "optimizer", config.notes);
}

}  // namespace unishard::trainer::detail
