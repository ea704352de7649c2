#include "formats/dcp/groups.hpp"

#include "containers/pickle_json.hpp"
#include "core/model_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

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

namespace {

/// Returns whether the catalog's group has a tensor for each parameter of the optimizer's.
bool is_named(const Json& named, const Json& group, const std::set<std::string_view>& fqns) {
  return group.is_object() && group.contains("params") &&
         named["params"].size() == group["params"].size() &&
         std::ranges::all_of(named["params"], [&](const Json& fqn) {
           return fqns.contains(fqn.get_ref<const std::string&>());
         });
}

/// Whether an optimizer's group lists second names of tied weights, of which the file of a copy has
/// the first.
bool lists_second_names(const Json& group, const std::set<std::string_view>& second_names) {
  return std::ranges::any_of(group["param_names"], [&](const Json& name) {
    return name.is_string() && second_names.contains(name.get_ref<const std::string&>());
  });
}

}  // namespace

bool list_names(Json& optimizer, const Catalog& catalog) {
  Json& groups = optimizer["param_groups"];
  const Json& named = catalog.groups;
  std::set<std::string_view> fqns;  // of the model: numbered states have no names
  for (const TensorInfo& tensor : catalog.tensors) {
    if (is_of_model(tensor)) fqns.insert(tensor.fqn);
  }
  bool have_names = groups.is_array() && named.is_array() && groups.size() == named.size();
  for (std::size_t g = 0; have_names && g < groups.size(); ++g)
    have_names = is_named(named[g], groups[g], fqns);
  std::set<std::string_view> seconds;
  for (const Alias& alias : catalog.aliases) seconds.insert(alias.fqn);
  for (std::size_t g = 0; have_names && g < groups.size(); ++g) {
    if (!groups[g].contains("param_names") || lists_second_names(groups[g], seconds))
      groups[g]["param_names"] = named[g]["params"];
  }
  return have_names;
}

}  // namespace unishard::converters::dcp
