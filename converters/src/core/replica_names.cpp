#include "unishard/converters/replica_names.hpp"

#include "unishard/converters/extra_state.hpp"

#include <algorithm>

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

std::optional<Catalog> without_replica(const Catalog& catalog, const Catalog& other) {
  if (!has_replica_part(catalog) || has_replica_part(other)) return std::nullopt;
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
