#pragma once
// Settings that torch.optim.AdamW (torch 2.15) expects in every parameter group of a checkpoint,
// with their defaults, and which groups are Adam's. Older versions omit settings that they do not
// know.
#include "unishard/format/catalog.hpp"
#include "unishard/format/json.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace unishard::converters {

/// Returns the settings in torch's order.
inline Json adamw_defaults() {
  return {{"lr", 1e-3},
          {"betas", Json::array({0.9, 0.999})},
          {"eps", 1e-8},
          {"weight_decay", 1e-2},
          {"amsgrad", false},
          {"maximize", false},
          {"foreach", nullptr},
          {"capturable", false},
          {"differentiable", false},
          {"fused", nullptr},
          {"decoupled_weight_decay", true}};
}

/// Returns whether torch's Adam has a tensor of this name for a parameter, apart from its step.
inline bool is_state_of_adam(std::string_view name) {
  return name == state::kExpAvg || name == state::kExpAvgSq || name == "max_exp_avg_sq";
}

/// Returns whether a group has the settings of an Adam: torch's, DeepSpeed's FusedAdam or CPUAdam.
/// Lion of DeepSpeed has no eps, and other optimizers have neither amsgrad nor bias_correction.
inline bool has_settings_of_adam(const Json& group) {
  return group.is_object() && group.contains("betas") && group.contains("eps") &&
         (group.contains("amsgrad") || group.contains("bias_correction"));
}

/// Returns a line about the settings that group `number` of Adam lacks and that decide how it
/// trains, for which torch's defaults are written; empty where it lacks none. A group that lacks
/// most is of a program that saves few.
std::string note_assumed_settings(const Json& group, std::size_t number);

/// Tells Adam's parameters by their states: both moments, and none that Adam does not have. Lion,
/// Muon, Prodigy and others have other states, and other settings.
/// Thread safety: is_adam() is thread-safe.
class AdamGroups {
 public:
  explicit AdamGroups(const Catalog& catalog);
  /// Returns whether these are the parameters of a group of Adam. Those without states, which were
  /// frozen or never updated, tell nothing; a group of them is Adam's where every other one is.
  bool is_adam(std::span<const std::string> fqns) const;

 private:
  struct States {
    int moments = 0;  // of exp_avg and exp_avg_sq
    bool has_others = false;
    bool are_adams() const { return moments == 2 && !has_others; }
  };
  std::unordered_map<std::string, States> states_;
  bool are_all_adams_ = false;
};

}  // namespace unishard::converters
