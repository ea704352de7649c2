#include "formats/torch/training_layout.hpp"

#include "unishard/converters/optimizer_scalars.hpp"

#include "core/embedded_catalog.hpp"

#include <unordered_map>

namespace unishard::converters::torch {
namespace {

constexpr std::string_view kModel = "model.", kOptimizer = "optimizer.state.";

/// The groups, each with the fqns of its parameters.
Json param_groups(const Catalog& catalog) {
  Json groups = catalog.groups.is_array() ? catalog.groups : Json::array({Json::object()});
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].contains("params")) continue;
    Json params = Json::array();
    for (const TensorInfo& tensor : catalog.tensors) {
      if (tensor.group == static_cast<std::int32_t>(g) && tensor.state == state::kFp32)
        params.push_back(tensor.fqn);
    }
    groups[g]["params"] = std::move(params);
  }
  return groups;
}

}  // namespace

TrainingLayout plan_training_layout(const Catalog& catalog) {
  TrainingLayout layout;
  const std::vector<std::string> paths = flat_paths(catalog, kModel);
  std::unordered_map<std::string_view, std::size_t> model, optimizer;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string& fqn = catalog.tensors[i].fqn;
    if (!paths[i].starts_with(kOptimizer)) {
      layout.model.emplace_back(fqn, i);
      model.emplace(fqn, i);
      continue;
    }
    const auto [place, is_new] = optimizer.emplace(fqn, layout.optimizer.size());
    if (is_new) layout.optimizer.push_back({fqn, {}});
    layout.optimizer[place->second].second.emplace_back(
        paths[i].substr(kOptimizer.size() + fqn.size() + 1), i);
  }
  const OptimizerScalars scalars(catalog);
  for (const std::string& fqn : scalars.fqns()) {
    if (optimizer.emplace(fqn, 0).second) layout.optimizer.push_back({fqn, {}});
  }
  for (const Alias& alias : catalog.aliases) {
    if (const auto target = model.find(alias.target); target != model.end())
      layout.model.emplace_back(alias.fqn, target->second);
  }
  layout.param_groups = param_groups(catalog);
  layout.rest = {{"catalog", catalog_text(catalog, paths)}};
  return layout;
}

const std::string* training_text(const Json& object) {
  if (!object.is_object() || !object.contains("unishard")) return nullptr;
  const Json& ours = object["unishard"];
  if (!ours.is_object() || !ours.contains("catalog")) return nullptr;
  return ours["catalog"].get_ptr<const std::string*>();
}

}  // namespace unishard::converters::torch
