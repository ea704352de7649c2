#include "formats/dcp/groups.hpp"

#include "containers/pickle_json.hpp"

#include <fmt/format.h>

namespace unishard::converters::dcp {

Json without_tuples(Json value) {
  if (!value.is_structured()) return value;
  if (value.is_object() && value.size() == 2 && value.contains("$type") &&
      value["$type"] == "tuple" && value.contains("items"))
    return without_tuples(Json(value["items"]));
  for (Json& child : value) child = without_tuples(std::move(child));
  return value;
}

void GroupCollector::add(const GroupKey& key, const Json& value) {
  Optimizer& optimizer = optimizers_[key.optimizer];
  if (key.setting.empty()) {
    const Json list = without_tuples(value);
    for (const Json& group : list) {
      if (group.is_object()) optimizer.whole.push_back(group);
    }
  } else if (key.group) {
    optimizer.nested[*key.group][key.setting] = without_tuples(value);
  } else {
    const auto [place, is_new] = optimizer.places.emplace(key.fqn, optimizer.by_parameter.size());
    if (is_new) optimizer.by_parameter.emplace_back(key.fqn, Json::object());
    optimizer.by_parameter[place->second].second[key.setting] = without_tuples(value);
  }
}

void drop_tensors(Json& group, std::size_t number, std::vector<std::string>& notes) {
  for (auto& [setting, value] : group.items()) {
    if (torch::tensors_in(value).empty()) continue;
    notes.push_back(fmt::format(
        "param_groups.{}.{} holds tensors: they are kept beside the groups, where it is null",
        number, setting));
    value = nullptr;
  }
}

std::vector<Json> GroupCollector::groups(std::size_t index) const {
  const Optimizer& optimizer = optimizers_[index];
  std::vector<Json> out = optimizer.whole;
  for (const auto& [number, settings] : optimizer.nested) {
    if (number < optimizer.whole.size()) {
      out[number].update(settings);  // settings that are tensors, such as a learning rate
    } else {
      out.push_back(settings);
    }
  }
  // Flattened groups lose their borders, so parameters with equal settings form a group.
  std::map<std::string, std::size_t> known;
  for (const auto& [fqn, settings] : optimizer.by_parameter) {
    const auto [place, is_new] = known.emplace(settings.dump(), out.size());
    if (is_new) {
      out.push_back(settings);
      out.back()["params"] = Json::array();
    }
    out[place->second]["params"].push_back(fqn);
  }
  for (Json& group : out) {
    if (!group.contains("params") || !group["params"].is_array()) group["params"] = Json::array();
  }
  return out;
}

}  // namespace unishard::converters::dcp
