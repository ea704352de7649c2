#include "formats/deepspeed/cpu_states.hpp"

#include "unishard/format/catalog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace unishard::converters::deepspeed {
namespace {

bool is_setting(const Json& settings, std::string_view key) {
  return settings.is_object() && settings.contains(std::string(key));
}

/// Returns true for the settings of a group of Adagrad that are not those of torch's own.
/// Adafactor, whose vectors have an exp_avg_sq alone too, has two numbers as its eps.
bool is_cpu_adagrad(const Json& settings) {
  return is_setting(settings, "eps") && settings["eps"].is_number() &&
         !is_setting(settings, "initial_accumulator_value");
}

/// Returns which groups are those of Adagrad of the CPU: by their settings, and because exp_avg_sq
/// is the only state of all their parameters.
std::vector<bool> find_cpu_adagrad(const ParameterTable& parameters, const Json& groups) {
  std::vector<bool> found;
  for (const Json& settings : groups) found.push_back(is_cpu_adagrad(settings));
  const auto is_second = [](const StatePieces& piece) {
    return piece.state == state::kFp32 || piece.state == state::kExpAvgSq;
  };
  for (const Parameter& parameter : parameters.all()) {
    const auto group = static_cast<std::size_t>(parameter.group);
    if (parameter.group < 0 || group >= found.size() || !found[group]) continue;
    found[group] = std::ranges::all_of(parameter.states, is_second);
  }
  return found;
}

}  // namespace

void name_cpu_states(ParameterTable& parameters, const Json& groups, Notes& notes) {
  const std::vector<bool> is_adagrad = find_cpu_adagrad(parameters, groups);
  std::size_t unused = 0;
  for (Parameter& parameter : parameters.all()) {
    const auto group = static_cast<std::size_t>(parameter.group);
    if (parameter.group < 0 || group >= groups.size()) continue;
    const Json& settings = groups[group];
    const auto find = [&](std::string_view name) {
      return std::ranges::find(parameter.states, name, &StatePieces::state);
    };
    const auto second = find(state::kExpAvgSq);
    if (second == parameter.states.end()) continue;
    const bool has_first = find(state::kExpAvg) != parameter.states.end();
    const bool is_lion = is_setting(settings, "betas") && !is_setting(settings, "eps");
    if (has_first && is_lion) {
      parameter.states.erase(second);
      ++unused;
    } else if (is_adagrad[group]) {
      second->state = kAdagradSum;
    }
  }
  if (unused == 0) return;
  notes.lose({Role::State, fmt::format("exp_avg_sq of {} parameters", unused),
              "DeepSpeed's Lion of the CPU has it and never uses it"});
}

std::string cpu_state_name(const Json& settings, const std::vector<std::string>& states,
                           const std::string& name) {
  const bool is_adagrad = states.size() == 1 && name == kAdagradSum && is_cpu_adagrad(settings);
  return is_adagrad ? std::string(state::kExpAvgSq) : name;
}

}  // namespace unishard::converters::deepspeed
