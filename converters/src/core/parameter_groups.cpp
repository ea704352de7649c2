#include "unishard/converters/parameter_groups.hpp"

#include <algorithm>

namespace unishard::converters {

std::optional<std::vector<std::string>> listed_parameters(const Json& group) {
  if (!group.is_object() || !group.contains("params") || !group["params"].is_array())
    return std::nullopt;
  std::vector<std::string> names;
  for (const Json& name : group["params"]) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  return names;
}

std::optional<std::int64_t> parameter_number(std::string_view fqn) {
  constexpr std::string_view kStart = "state.";
  constexpr std::size_t kMostDigits = 18;
  if (!fqn.starts_with(kStart)) return std::nullopt;
  const std::string_view digits = fqn.substr(kStart.size());
  const bool is_number = !digits.empty() && digits.size() <= kMostDigits &&
                         digits.find_first_not_of("0123456789") == digits.npos;
  return is_number ? std::optional<std::int64_t>(std::stoll(std::string(digits))) : std::nullopt;
}

Json with_tuples(Json group) {
  const auto is_number = [](const Json& value) { return value.is_number() || value.is_null(); };
  for (auto& [key, value] : group.items()) {
    const bool is_short = value.is_array() && (value.size() == 2 || value.size() == 3);
    if (key != "params" && is_short && std::ranges::all_of(value, is_number))
      value = {{"$type", "tuple"}, {"items", value}};
  }
  return group;
}

}  // namespace unishard::converters
