#include "unishard/converters/expert_ranks.hpp"

#include "unishard/format/error.hpp"

#include "formats/deepspeed/expert_groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace unishard::converters {
namespace {

/// Returns the settings of a group but its name and parameters, as text.
std::string key_of(Json group) {
  group.erase("name");
  group.erase("params");
  return group.dump();
}

/// Appends the parameters of `more` to those of `group`, in the model's order.
void append_parameters(Json& group, const Json& more, const Catalog& catalog) {
  if (!group.contains("params") || !group["params"].is_array() || !more.contains("params")) return;
  for (const Json& name : more["params"]) group["params"].push_back(name);
  std::unordered_map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i)
    places.emplace(catalog.tensors[i].fqn, i);
  const auto place = [&](const Json& name) {
    const auto found =
        name.is_string() ? places.find(name.get_ref<const std::string&>()) : places.end();
    return found == places.end() ? places.size() : found->second;
  };
  auto& names = group["params"].get_ref<Json::array_t&>();
  std::ranges::stable_sort(names, {}, place);
}

}  // namespace

void set_expert_ranks(Catalog& catalog, std::uint32_t ranks) {
  if (ranks == 0)
    raise(ErrorCode::InvalidArgument, "--ep-size 0: there is at least one expert rank");
  Json groups = Json::array();
  std::vector<std::int32_t> numbers;  // the new number of each group
  /// For equal settings and the same old number of expert ranks, how many groups there were.
  std::map<std::pair<std::string, std::uint64_t>, std::size_t> seen;
  std::map<std::pair<std::string, std::size_t>, std::size_t> made;  // the groups of experts
  for (const Json& group : catalog.groups.is_array() ? catalog.groups : Json::array()) {
    const std::uint64_t size = deepspeed::expert_ranks_of(group, "the parameter groups");
    std::size_t number = groups.size();
    if (size > 0) {
      const std::string key = key_of(group);
      number = made.try_emplace({key, seen[{key, size}]++}, number).first->second;
    }
    numbers.push_back(static_cast<std::int32_t>(number));
    if (number < groups.size()) {
      append_parameters(groups[number], group, catalog);
      continue;
    }
    groups.push_back(group);
    if (size > 0) groups.back()["name"] = fmt::format("ep_size_{}", ranks);
  }
  if (made.empty()) {
    raise(ErrorCode::InvalidArgument,
          "--ep-size: no parameter group of the checkpoint holds experts of DeepSpeed's MoE layers",
          "leave --ep-size out");
  }
  for (TensorInfo& tensor : catalog.tensors) {
    if (tensor.group >= 0 && std::cmp_less(tensor.group, numbers.size()))
      tensor.group = numbers[static_cast<std::size_t>(tensor.group)];
  }
  catalog.groups = std::move(groups);
}

}  // namespace unishard::converters
