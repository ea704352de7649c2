#include "unishard/converters/parameter_groups.hpp"

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

}  // namespace unishard::converters
