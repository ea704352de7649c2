#include "formats/trainer/compiled_names.hpp"

#include "core/file_records.hpp"

#include <algorithm>
#include <string_view>

namespace unishard::converters::trainer {
namespace {

constexpr std::string_view kWrapped = "_orig_mod";

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

}  // namespace

CompiledModules::CompiledModules(const std::vector<std::pair<std::string, std::string>>& names) {
  for (const auto& [fqn, name] : names) {
    std::string module;
    each_part(name, [&](std::string_view part) {
      if (part == kWrapped) {
        modules_.insert(module);
      } else {
        append(module, part);
      }
    });
  }
  const auto is_explained = [&](const auto& each) { return name_of(each.first) == each.second; };
  if (!std::ranges::all_of(names, is_explained)) modules_.clear();
}

CompiledModules::CompiledModules(const Catalog& catalog, std::string_view library_name) {
  const std::string library(library_name);
  const Json record = file_record(catalog.producer, kCompiledModules);
  if (!record.is_object() || !record.contains(library) || !record[library].is_array()) return;
  for (const Json& module : record[library]) {
    if (module.is_string()) modules_.insert(module.get<std::string>());
  }
}

std::string CompiledModules::name_of(const std::string& fqn) const {
  if (modules_.empty()) return fqn;
  std::string name, module;
  const auto append_wrapper = [&] {
    if (modules_.contains(module)) append(name, kWrapped);
  };
  append_wrapper();
  each_part(fqn, [&](std::string_view part) {
    append(name, part);
    append(module, part);
    append_wrapper();
  });
  return name;
}

void CompiledModules::record(std::string_view library, Json& producer) const {
  if (producer.is_null() || producer.is_object())
    producer[std::string(kCompiledModules)] = {{std::string(library), modules_}};
}

}  // namespace unishard::converters::trainer
