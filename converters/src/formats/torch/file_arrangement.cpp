#include "formats/torch/file_arrangement.hpp"

#include "core/file_records.hpp"
#include "formats/dcp/groups.hpp"

#include <algorithm>
#include <set>

namespace unishard::converters::torch {
namespace {

using dcp::KeyPath;

constexpr std::size_t kMostKeys = 1024, kMostParts = 4;

/// Calls `take` with each key and value of a dict or list.
template <class AnyJson, class Take>
void each_child(AnyJson& value, const Take& take) {
  if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i)
      take(dcp::PathPart{std::to_string(i), true}, value[i]);
  } else if (value.is_object() && !value.contains("$type")) {
    for (auto& [key, child] : value.items()) take(dcp::PathPart{key, false}, child);
  } else if (value.is_object() && value.contains("pairs")) {
    for (AnyJson& pair : value["pairs"]) {
      if (pair[0].is_string())
        take(dcp::PathPart{pair[0].template get<std::string>(), false}, pair[1]);
    }
  }
}

bool is_optimizer(const Json& value) {
  return value.is_object() && value.contains("state") && value.contains("param_groups") &&
         value["param_groups"].is_array();
}

template <class AnyJson>
void find_optimizers(AnyJson& value, const KeyPath& path,
                     std::vector<std::pair<KeyPath, AnyJson*>>& found) {
  if (is_optimizer(value)) return found.push_back({path, &value});
  if (path.size() == kMostParts || value.size() > kMostKeys) return;
  each_child(value, [&](const dcp::PathPart& part, AnyJson& child) {
    KeyPath longer = path;
    longer.push_back(part);
    find_optimizers(child, longer, found);
  });
}

bool has_numbers(const Json& optimizer) {
  return std::ranges::any_of(optimizer["param_groups"], [](const Json& group) {
    if (!group.is_object() || !group.contains("params")) return false;
    const Json& params = group["params"];
    return params.is_array() && !params.empty() && params[0].is_number_integer();
  });
}

struct Model {
  KeyPath path;
  bool is_compiled = false;
};

/// Returns the place of which the model's tensors are the members.
std::optional<Model> find_model(const dcp::StateDict& state, const dcp::Arrangement& found) {
  std::optional<Model> model;
  for (std::size_t i = 0; i < found.entries.size(); ++i) {
    const TensorInfo& tensor = found.catalog.tensors[i];
    if (tensor.state != state::kFp32 && tensor.state != state::kWeights &&
        tensor.state != state::kBuffer)
      continue;
    KeyPath path = state.tensors[found.entries[i]].path;
    if (path.size() < 2 || path.size() > kMostParts) return std::nullopt;
    const std::string name = std::move(path.back().text);
    const bool is_compiled = name == std::string(kCompiled) + tensor.fqn;
    if (name != tensor.fqn && !is_compiled) return std::nullopt;
    path.pop_back();
    if (model && (model->path != path || model->is_compiled != is_compiled)) return std::nullopt;
    model = {std::move(path), is_compiled};
  }
  return model;
}

Json to_json(const KeyPath& path) {
  Json parts = Json::array();
  for (const dcp::PathPart& part : path)
    parts.push_back(Json::array({part.text, part.is_position}));
  return parts;
}

KeyPath path_from(const Json& parts) {
  KeyPath path;
  for (const Json& part : parts)
    path.push_back({part.at(0).get<std::string>(), part.at(1).get<bool>()});
  return path;
}

bool is_usable(const KeyPath& path) {
  return !path.empty() && path.size() <= kMostParts && !path.front().is_position &&
         std::ranges::none_of(path, [](const auto& part) { return part.text.starts_with('$'); }) &&
         path.front().text != "unishard";
}

bool starts_with(const KeyPath& path, const KeyPath& start) {
  return path.size() >= start.size() && std::equal(start.begin(), start.end(), path.begin());
}

}  // namespace

bool name_parameters(Json& object, const Catalog& catalog) {
  std::vector<std::pair<KeyPath, Json*>> optimizers;
  find_optimizers(object, {}, optimizers);
  return optimizers.empty() ||
         (optimizers.size() == 1 && dcp::list_names(*optimizers.front().second, catalog));
}

Json describe_arrangement(const Json& object, const dcp::StateDict& state,
                          const dcp::Arrangement& arrangement) {
  std::vector<std::pair<KeyPath, const Json*>> optimizers;
  find_optimizers(object, {}, optimizers);
  const auto model = find_model(state, arrangement);
  if (!model || optimizers.size() > 1) return Json::object();
  // An optimizer without groups in the catalog is a value in the client state.
  if (!arrangement.catalog.groups.is_array()) optimizers.clear();
  Json keys = Json::array();
  each_child(object, [&](const dcp::PathPart& part, const Json&) { keys.push_back(part.text); });
  if (keys.size() > kMostKeys) return Json::object();
  Json found = {{"keys", std::move(keys)}, {"model", to_json(model->path)}};
  if (model->is_compiled) found["compiled"] = true;
  found["optimizer"] = optimizers.empty() ? Json() : to_json(optimizers.front().first);
  found["numbered"] = !optimizers.empty() && has_numbers(*optimizers.front().second);
  return found;
}

FileArrangement arrangement_of(const Catalog& catalog) {
  if (!catalog.producer.is_object() || !catalog.producer.contains(kTorchArrangement)) return {};
  FileArrangement found;
  try {
    const Json& recorded = catalog.producer[std::string(kTorchArrangement)];
    found.keys = recorded.at("keys").get<std::vector<std::string>>();
    found.model = path_from(recorded.at("model"));
    found.optimizer.reset();
    if (!recorded.at("optimizer").is_null()) found.optimizer = path_from(recorded["optimizer"]);
    found.is_numbered = recorded.at("numbered").get<bool>();
    found.is_compiled = recorded.value("compiled", false);
  } catch (const Json::exception&) {
    return {};
  }
  if (!is_usable(found.model) || found.keys.size() > kMostKeys) return {};
  if (!found.optimizer) return found;
  const KeyPath& optimizer = *found.optimizer;
  if (!is_usable(optimizer) || starts_with(optimizer, found.model) ||
      starts_with(found.model, optimizer))
    return {};
  return found;
}

}  // namespace unishard::converters::torch
