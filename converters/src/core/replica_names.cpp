#include "unishard/converters/replica_names.hpp"

#include "unishard/converters/extra_state.hpp"

#include <algorithm>
#include <unordered_set>

namespace unishard::converters {

std::string_view without_replica(std::string_view name) {
  if (name.starts_with(kReplica) && name.size() > kReplica.size())
    name.remove_prefix(kReplica.size());
  return name;
}

bool have_replica_part(const std::vector<std::string>& names) {
  return !names.empty() && std::ranges::all_of(names, [](const std::string& name) {
    return without_replica(name) != name;
  });
}

bool has_replica_part(const Catalog& catalog) {
  bool has_names = false;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (tensor.state == kExtraState) continue;
    if (without_replica(tensor.fqn) == tensor.fqn) return false;
    has_names = true;
  }
  return has_names && std::ranges::all_of(catalog.aliases, [](const Alias& alias) {
           return without_replica(alias.fqn) != alias.fqn;
         });
}

namespace {

/// Returns whether a tensor of one has the name of a tensor of the other, other than extra states.
bool share_names(const Catalog& one, const Catalog& other) {
  std::unordered_set<std::string_view> names;
  for (const TensorInfo& tensor : one.tensors) {
    if (tensor.state != kExtraState) names.insert(tensor.fqn);
  }
  return std::ranges::any_of(other.tensors,
                             [&](const TensorInfo& tensor) { return names.contains(tensor.fqn); });
}

}  // namespace

std::optional<Catalog> without_replica(const Catalog& catalog, const Catalog& other) {
  if (!has_replica_part(catalog) || has_replica_part(other) || share_names(catalog, other))
    return std::nullopt;
  Catalog plain = catalog;
  const auto shorten = [](std::string& name) { name = std::string(without_replica(name)); };
  for (TensorInfo& tensor : plain.tensors) {
    if (tensor.state != kExtraState) shorten(tensor.fqn);
  }
  for (Alias& alias : plain.aliases) {
    shorten(alias.fqn);
    shorten(alias.target);
  }
  return plain;
}

}  // namespace unishard::converters
