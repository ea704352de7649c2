#include "formats/hdf5/link_names.hpp"

#include "core/embedded_catalog.hpp"
#include "core/escaped_name.hpp"

#include <algorithm>
#include <unordered_set>

namespace unishard::converters::hdf5 {
namespace {

/// Returns true when HDF5 accepts the name as a path and returns it unchanged.
bool is_path(std::string_view name) {
  if (name.starts_with(kEscapedName) || name.find('\0') != std::string_view::npos) return false;
  if (std::ranges::count(name, '/') >= kGroupDepth) return false;
  if (name.substr(0, name.find('/')) == kCatalogKey) return false;
  return has_plain_parts(name);
}

/// "a" or "a/b" of "a/b/c" may be a tensor name too; it cannot be both a group and a data set.
bool is_inside_another(std::string_view name, const std::unordered_set<std::string_view>& names) {
  for (std::size_t end = name.find('/'); end != std::string_view::npos;
       end = name.find('/', end + 1)) {
    if (names.contains(name.substr(0, end))) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> link_paths(const std::vector<std::string_view>& names) {
  const std::unordered_set<std::string_view> all(names.begin(), names.end());
  std::vector<std::string> paths;
  paths.reserve(names.size());
  for (const std::string_view name : names) {
    const bool fits = is_path(name) && !is_inside_another(name, all);
    paths.push_back(fits ? std::string(name) : escaped_name(name));
  }
  return paths;
}

std::string name_of_link(std::string_view path) { return unescaped_name(path); }

}  // namespace unishard::converters::hdf5
