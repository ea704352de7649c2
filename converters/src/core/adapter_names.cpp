#include "unishard/converters/adapter_names.hpp"

#include <algorithm>
#include <iterator>
#include <vector>

namespace unishard::converters {
namespace {

constexpr std::string_view kWhole = "modules_to_save", kAdapter = "default";
/// A parameter in the module and a tensor in the file.
constexpr std::string_view kMagnitude = "lora_magnitude_vector";

using Parts = std::vector<std::string>;

Parts split(std::string_view name) {
  Parts parts;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    parts.emplace_back(name.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::string join(const Parts& parts) {
  std::string name;
  for (const std::string& part : parts) name += (name.empty() ? "" : ".") + part;
  return name;
}

bool is_leaf(std::string_view part) { return part == "weight" || part == "bias"; }

Parts::iterator find_mark(Parts& parts) {
  return std::ranges::find_if(parts, [](std::string_view part) {
    return part.starts_with("lora_") || part.starts_with("ia3_");
  });
}

}  // namespace

bool is_adapter_name(std::string_view name) {
  Parts parts = split(name);
  return find_mark(parts) != parts.end();
}

std::optional<std::string> adapter_file_name(std::string_view module_name) {
  Parts parts = split(module_name);
  if (const auto mark = find_mark(parts); mark != parts.end()) {
    const bool is_magnitude = *mark == kMagnitude;
    const auto adapter = std::next(mark);
    if (adapter != parts.end() && !is_leaf(*adapter)) parts.erase(adapter);
    if (is_magnitude && is_leaf(parts.back())) parts.pop_back();
    return join(parts);
  }
  const auto whole = std::ranges::find(parts, kWhole);
  if (whole == parts.end() || std::distance(whole, parts.end()) < 3) return std::nullopt;
  parts.erase(whole, whole + 2);
  return join(parts);
}

std::string adapter_module_name(std::string_view file_name) {
  Parts parts = split(file_name);
  if (const auto mark = find_mark(parts); mark != parts.end()) {
    const bool is_magnitude = *mark == kMagnitude;
    parts.insert(std::next(mark), std::string(kAdapter));
    if (is_magnitude && !is_leaf(parts.back())) parts.emplace_back("weight");
    return join(parts);
  }
  if (parts.size() < 2 || !is_leaf(parts.back())) return std::string(file_name);
  const auto leaf = std::prev(parts.end());
  parts.insert(parts.insert(leaf, std::string(kAdapter)), std::string(kWhole));
  return join(parts);
}

}  // namespace unishard::converters
