#include "formats/deepspeed/missing_moments.hpp"

#include "unishard/format/catalog.hpp"

#include "core/adam_settings.hpp"

namespace unishard::converters::deepspeed {

std::vector<std::string_view> missing_moments(const Json& settings,
                                              const std::set<std::string>& states,
                                              bool has_stepped) {
  constexpr const char* kScheduleFree = "z";
  std::vector<std::string_view> missing;
  if (!settings.is_object() || !settings.contains("betas") || states.contains(kScheduleFree))
    return missing;
  const bool has_first = states.contains(std::string(state::kExpAvg));
  const bool has_second = states.contains(std::string(state::kExpAvgSq));
  const bool has_more = states.size() > (has_first ? 1u : 0u);
  const bool is_adam = has_settings_of_adam(settings) && !has_more && has_stepped;
  if (!has_first && (has_second || is_adam)) missing.push_back(state::kExpAvg);
  if (!has_second && is_adam) missing.push_back(state::kExpAvgSq);
  return missing;
}

}  // namespace unishard::converters::deepspeed
