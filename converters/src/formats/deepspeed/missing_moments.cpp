#include "formats/deepspeed/missing_moments.hpp"

#include "unishard/format/catalog.hpp"

#include "core/adam_settings.hpp"

#include <algorithm>

namespace unishard::converters::deepspeed {

std::vector<std::string_view> missing_moments(const Json& settings,
                                              const std::set<std::string>& states,
                                              bool has_stepped) {
  std::vector<std::string_view> missing;
  if (!settings.is_object() || !settings.contains("betas")) return missing;
  const std::set<std::string_view> of_adam = {state::kExpAvg, state::kExpAvgSq, "max_exp_avg_sq"};
  const bool has_own =
      std::ranges::any_of(states, [&](const std::string& name) { return !of_adam.contains(name); });
  const bool has_first = states.contains(std::string(state::kExpAvg));
  const bool has_second = states.contains(std::string(state::kExpAvgSq));
  const bool is_adam = has_settings_of_adam(settings) && !has_own && !has_second && has_stepped;
  if (!has_first && ((has_second && !has_own) || is_adam)) missing.push_back(state::kExpAvg);
  if (!has_second && is_adam) missing.push_back(state::kExpAvgSq);
  return missing;
}

}  // namespace unishard::converters::deepspeed
