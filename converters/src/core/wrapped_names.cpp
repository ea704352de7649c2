#include "core/wrapped_names.hpp"

#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/optimizer_scalars.hpp"

#include "core/file_records.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <unordered_map>

namespace unishard::converters {
namespace {

constexpr std::array<std::string_view, 5> kWrappers = {"_checkpoint_wrapped_module",
                                                       "_fsdp_wrapped_module", "_fpw_module",
                                                       "_orig_mod", "_forward_module"};
constexpr std::string_view kCompiled = "_orig_mod";
constexpr std::string_view kReplicaModule = kReplica.substr(0, kReplica.size() - 1);

void append(std::string& name, std::string_view part) {
  if (!name.empty()) name += '.';
  name += part;
}

/// Calls `take` with the parts of a name that dots separate.
template <class Take>
void each_part(std::string_view name, const Take& take) {
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    take(name.substr(at, end - at));
    at = end + 1;
  }
}

bool is_wrapper(std::string_view part) { return std::ranges::count(kWrappers, part) > 0; }

bool has_wrapper(std::string_view name) {
  return std::ranges::any_of(kWrappers, [&](auto part) { return name.find(part) != name.npos; });
}

using Rename = std::function<std::string(const std::string&)>;

/// Renames the tensors that a value of the client state names.
void rename_tensors(Json& value, const std::unordered_map<std::string, std::string>& names) {
  if (!value.is_structured()) return;
  if (value.is_object() && value.contains("$tensor") && value["$tensor"].is_string()) {
    const auto found = names.find(value["$tensor"].get_ref<const std::string&>());
    if (found != names.end()) value["$tensor"] = found->second;
    return;
  }
  for (Json& child : value) rename_tensors(child, names);
}

void rename_groups(Json& groups, const Rename& rename) {
  if (!groups.is_array()) return;
  for (Json& group : groups) {
    if (!group.is_object() || !group.contains("params") || !group["params"].is_array()) continue;
    for (Json& name : group["params"]) {
      if (name.is_string()) name = rename(name.get<std::string>());
    }
  }
}

void rename_all(Catalog& catalog, const Rename& rename) {
  std::unordered_map<std::string, std::string> names;
  for (TensorInfo& tensor : catalog.tensors) {
    if (tensor.state == kExtraState) continue;  // it is called by its key
    std::string name = rename(tensor.fqn);
    names.emplace(tensor.fqn, name);
    tensor.fqn = std::move(name);
  }
  for (Alias& alias : catalog.aliases) {
    names.emplace(alias.fqn, rename(alias.fqn));
    alias = {rename(alias.fqn), rename(alias.target)};
  }
  for (UnitLayout& unit : catalog.units) {
    for (std::string& fqn : unit.fqns) fqn = rename(fqn);
  }
  rename_groups(catalog.groups, rename);
  catalog.client_state = rename_optimizer_scalars(std::move(catalog.client_state), rename);
  rename_tensors(catalog.client_state, names);
}

}  // namespace

std::string without_wrappers(std::string name) {
  if (!has_wrapper(name)) return name;
  std::string plain;
  bool is_last_wrapper = false;
  each_part(name, [&](std::string_view part) {
    is_last_wrapper = is_wrapper(part);
    if (!is_last_wrapper) append(plain, part);
  });
  return is_last_wrapper || plain.empty() ? name : plain;
}

bool ends_with_wrapper(std::string_view prefix) {
  if (prefix.ends_with('.')) prefix.remove_suffix(1);
  return is_wrapper(prefix.substr(prefix.rfind('.') + 1));
}

WrappedNames::WrappedNames(const std::vector<std::pair<std::string, std::string>>& names) {
  for (const auto& [fqn, name] : names) {
    // The wrapper that is no wrapper's name, "module", is the one before the fqn.
    std::string module, wrapper;
    std::string_view rest = name;
    const bool is_replica = without_wrappers(name) == std::string(kReplica) + fqn;
    bool may_skip = is_replica;
    const auto close = [&] {
      if (!wrapper.empty()) wrappers_[module] = std::exchange(wrapper, {});
    };
    each_part(rest, [&](std::string_view part) {
      if (is_wrapper(part) || (may_skip && part == kReplicaModule)) {
        may_skip = may_skip && is_wrapper(part);
        append(wrapper, part);
        return;
      }
      close();
      append(module, part);
    });
  }
  const auto is_explained = [&](const auto& each) { return name_of(each.first) == each.second; };
  if (!std::ranges::all_of(names, is_explained)) wrappers_.clear();
}

WrappedNames::WrappedNames(const Catalog& catalog, std::string_view library_name) {
  const std::string library(library_name);
  const Json record = file_record(catalog.producer, kCompiledModules);
  if (!record.is_object() || !record.contains(library) || !record[library].is_array()) return;
  for (const Json& module : record[library]) {
    if (module.is_string()) {
      wrappers_.emplace(module.get<std::string>(), kCompiled);
    } else if (module.is_array() && module.size() == 2 && module[0].is_string() &&
               module[1].is_string()) {
      wrappers_.emplace(module[0].get<std::string>(), module[1].get<std::string>());
    }
  }
}

bool WrappedNames::has_replica() const {
  const auto model = wrappers_.find("");
  bool has_part = false;
  if (model != wrappers_.end())
    each_part(model->second, [&](std::string_view part) { has_part |= part == kReplicaModule; });
  return has_part;
}

std::string WrappedNames::name_of(const std::string& fqn) const {
  if (wrappers_.empty()) return fqn;
  std::string name, module;
  const auto append_wrapper = [&] {
    if (const auto found = wrappers_.find(module); found != wrappers_.end())
      append(name, found->second);
  };
  append_wrapper();
  each_part(fqn, [&](std::string_view part) {
    append(name, part);
    append(module, part);
    append_wrapper();
  });
  return name;
}

void WrappedNames::record(std::string_view library, Json& producer) const {
  if (!producer.is_null() && !producer.is_object()) return;
  Json modules = Json::array();
  for (const auto& [module, wrapper] : wrappers_)
    modules.push_back(wrapper == kCompiled ? Json(module) : Json::array({module, wrapper}));
  producer[std::string(kCompiledModules)] = {{std::string(library), std::move(modules)}};
}

ModulePart module_part_of(const Json& producer, std::string_view library) {
  Catalog catalog;
  catalog.producer = producer;
  return WrappedNames(catalog, library).has_replica() ? ModulePart::Replica : ModulePart::Model;
}

void unwrap_names(Catalog& catalog, std::string_view library, ModulePart part) {
  if (WrappedNames(catalog, library).has_replica()) part = ModulePart::Replica;
  const auto is_extra = [](const TensorInfo& tensor) { return tensor.state == kExtraState; };
  const auto may_be_wrapped = [&](const TensorInfo& tensor) {
    return !is_extra(tensor) && has_wrapper(tensor.fqn);
  };
  const auto may_be_replica = [&](const TensorInfo& tensor) {
    return is_extra(tensor) || has_wrapper(tensor.fqn) || tensor.fqn.starts_with(kReplica);
  };
  if (std::ranges::none_of(catalog.tensors, may_be_wrapped) &&
      (part == ModulePart::Model || !std::ranges::all_of(catalog.tensors, may_be_replica)))
    return;  // the usual case, without a copy of the names
  std::vector<std::string> plain;
  const auto take = [&](const std::string& name) { plain.push_back(without_wrappers(name)); };
  for (const TensorInfo& tensor : catalog.tensors) {
    if (!is_extra(tensor)) take(tensor.fqn);
  }
  for (const Alias& alias : catalog.aliases) take(alias.fqn);
  const bool is_replica = part == ModulePart::Replica && have_replica_part(plain);
  const Rename rename = [&](const std::string& name) {
    std::string out = without_wrappers(name);
    return is_replica ? std::string(without_replica(out)) : out;
  };
  std::vector<std::pair<std::string, std::string>> names;
  std::set<std::pair<std::string, std::string>> used;
  bool changes = false, is_unique = true;
  const auto add = [&](const std::string& own, const std::string& state) {
    names.emplace_back(rename(own), own);
    changes |= names.back().first != own;
    is_unique = used.emplace(names.back().first, state).second && is_unique;
  };
  for (const TensorInfo& tensor : catalog.tensors) {
    if (!is_extra(tensor)) add(tensor.fqn, tensor.state);
  }
  for (const Alias& alias : catalog.aliases) add(alias.fqn, "");
  if (!changes || !is_unique) return;
  rename_all(catalog, rename);
  const WrappedNames wrapped(names);
  if (!wrapped.empty()) wrapped.record(library, catalog.producer);
}

void unwrap_restored(Catalog& catalog, std::string_view library) {
  if (!WrappedNames(catalog, library).empty()) unwrap_names(catalog, library, ModulePart::Model);
}

void wrap_names(Catalog& catalog, std::string_view library) {
  const WrappedNames wrapped(catalog, library);
  if (!wrapped.empty())
    rename_all(catalog, [&](const std::string& fqn) { return wrapped.name_of(fqn); });
}

}  // namespace unishard::converters
