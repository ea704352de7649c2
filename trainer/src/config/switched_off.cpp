#include "config/switched_off.hpp"

#include <algorithm>

namespace unishard::trainer::detail {
namespace {

bool is_off_scalar(std::string_view name, const Json& value) {
  if (value.is_null() || value == "" || value == "none" || value == "None" || value == "auto")
    return true;
  if (value.is_boolean()) return !value.get<bool>();
  const bool is_group_of_one = name.ends_with("_size") && value == 1;
  return value == 0 || is_group_of_one;
}

bool is_off_member(const Json& object, std::string_view name) {
  const auto found = object.find(std::string(name));
  return found == object.end() || is_switched_off(name, *found);
}

}  // namespace

bool is_switched_off(std::string_view feature, const Json& value) {
  if (value.is_array()) return value.empty();
  if (!value.is_object()) return is_off_scalar(feature, value);
  if (value.contains("disable")) return value["disable"] == true;
  const bool has_nothing_to_do = feature == "data_efficiency" &&
                                 is_off_member(value, "data_sampling") &&
                                 is_off_member(value, "data_routing");
  if (has_nothing_to_do) return true;
  // A method of "compression_training" is enabled in its shared parameters.
  for (const char* name : {"enabled", "device", "shared_parameters"})
    if (value.contains(name)) return is_switched_off(name, value[name]);
  return std::ranges::all_of(value.items(), [](const auto& member) {
    return is_switched_off(member.key(), member.value());
  });
}

}  // namespace unishard::trainer::detail
