#include "formats/deepspeed/unstarted_parameters.hpp"

#include "unishard/format/text.hpp"

#include "core/model_tensors.hpp"

#include <fmt/format.h>

#include <set>
#include <string_view>

namespace unishard::converters::deepspeed {
namespace {

/// The names of a catalog's tensors, by what the tensors are.
struct TensorNames {
  std::set<std::string_view> frozen, with_states;
  bool has_moments = false;
};

TensorNames names_of(const Catalog& catalog) {
  TensorNames names;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (tensor.frozen) names.frozen.insert(tensor.fqn);
    if (is_of_model(tensor)) continue;
    names.with_states.insert(tensor.fqn);
    names.has_moments |= tensor.state == state::kExpAvg || tensor.state == state::kExpAvgSq;
  }
  return names;
}

}  // namespace

std::vector<std::string> doubts_about_unstarted(const Catalog& catalog) {
  const TensorNames names = names_of(catalog);
  if (!names.has_moments || !catalog.groups.is_array()) return {};
  std::vector<std::string> unstarted;
  for (const Json& group : catalog.groups) {
    if (!group.is_object() || !group.contains("betas") || !group.contains("params")) continue;
    for (const Json& name : group["params"]) {
      if (!name.is_string()) continue;
      const auto& fqn = name.get_ref<const std::string&>();
      if (!names.frozen.contains(fqn) && !names.with_states.contains(fqn)) unstarted.push_back(fqn);
    }
  }
  if (unstarted.empty()) return {};
  return {
      fmt::format("the optimizer lists {} parameters without a state: {}: they are frozen or "
                  "were not used, or their states are lost",
                  unstarted.size(), first_names(unstarted))};
}

}  // namespace unishard::converters::deepspeed
