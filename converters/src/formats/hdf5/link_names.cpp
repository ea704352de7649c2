#include "formats/hdf5/link_names.hpp"

#include "core/embedded_catalog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_set>

namespace unishard::converters::hdf5 {
namespace {

constexpr std::string_view kEscaped = "unishard.fqn:";

bool is_plain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 && byte != 0x7f && c != '%' && c != '/';
}

std::string escape(std::string_view name) {
  std::string out(kEscaped);
  for (const char c : name) {
    if (is_plain(c)) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::optional<std::string> unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text.size() - i < 3 || std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2) {
      return std::nullopt;
    }
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

/// Returns true when HDF5 accepts the name as a path and returns it unchanged.
bool is_path(std::string_view name) {
  if (name.starts_with(kEscaped) || name.find('\0') != std::string_view::npos) return false;
  if (std::ranges::count(name, '/') >= kGroupDepth) return false;
  if (name.substr(0, name.find('/')) == kCatalogKey) return false;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
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
    paths.push_back(fits ? std::string(name) : escape(name));
  }
  return paths;
}

std::string name_of_link(std::string_view path) {
  if (path.starts_with(kEscaped)) {
    if (auto name = unescape(path.substr(kEscaped.size()))) return *std::move(name);
  }
  return std::string(path);
}

}  // namespace unishard::converters::hdf5
