#include "formats/numpy/entry_names.hpp"

#include "core/embedded_catalog.hpp"
#include "core/escaped_name.hpp"

#include <algorithm>
#include <unordered_set>

namespace unishard::converters::numpy {
namespace {

constexpr std::string_view kSuffix = ".npy";

/// numpy takes "a.npy" for "a" where both are there, Python's zipfile cuts names at NUL, and some
/// programs take a backslash for a slash.
bool is_key(std::string_view name, const std::unordered_set<std::string_view>& all) {
  const auto other = key_of_entry(name);
  if (name.starts_with(kEscapedName) || (other && all.contains(*other))) return false;
  if (name == kCatalogKey || name == kTypesKey) return false;
  const auto is_odd = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == '\\'; };
  return has_plain_parts(name) && std::ranges::none_of(name, is_odd);
}

}  // namespace

std::vector<std::string> entry_names(const std::vector<std::string>& names) {
  const std::unordered_set<std::string_view> all(names.begin(), names.end());
  std::vector<std::string> entries;
  entries.reserve(names.size());
  for (const std::string& name : names)
    entries.push_back(own_entry_name(is_key(name, all) ? name : escaped_name(name)));
  return entries;
}

std::string own_entry_name(std::string_view key) { return std::string(key) + std::string(kSuffix); }

std::optional<std::string> key_of_entry(std::string_view entry) {
  if (!entry.ends_with(kSuffix)) return std::nullopt;
  return std::string(entry.substr(0, entry.size() - kSuffix.size()));
}

}  // namespace unishard::converters::numpy
