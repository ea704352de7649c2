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
bool is_cpu_adagrad(const Json& settings) {
  return settings.is_object() && !is_setting(settings, "initial_accumulator_value");
}

}  // namespace

void name_cpu_states(ParameterTable& parameters, const Json& groups, Notes& notes) {
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
    } else if (!has_first && is_cpu_adagrad(settings)) {
      second->state = kAdagradSum;
    }
  }
  if (unused == 0) return;
  notes.lose({Role::State, fmt::format("exp_avg_sq of {} parameters", unused),
              "DeepSpeed's Lion of the CPU has it and never uses it"});
}

std::string cpu_state_name(const Json& settings, const std::string& name) {
  const bool is_sum = name == kAdagradSum && is_cpu_adagrad(settings);
  return is_sum ? std::string(state::kExpAvgSq) : name;
}

}  // namespace unishard::converters::deepspeed
