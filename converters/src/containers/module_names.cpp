#include "containers/module_names.hpp"

#include "unishard/format/error.hpp"

#include "containers/torch_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace unishard::converters::torch {
namespace {

/// A name of a tensor, and that of a module: its own, or the one that it contradicts.
using Pair = std::pair<std::string_view, std::string_view>;

bool differ_in_one(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  std::size_t count = 0;
  for (std::size_t i = 0; i < one.size() && count < 2; ++i)
    count += one[i] != other[i] ? std::size_t{1} : 0;
  return count == 1;
}

void compare_names(Value dict, Value modules, std::vector<Pair>& found) {
  std::unordered_set<std::string_view> names;
  for (std::size_t i = 0; i < modules.pair_count(); ++i) {
    if (modules.key(i).is(NodeKind::Str)) names.insert(modules.key(i).text());
  }
  std::vector<Pair> strange;
  for (std::size_t i = 0; i < dict.pair_count(); ++i) {
    if (!dict.key(i).is(NodeKind::Str) || !TorchFile::is_tensor(dict.value(i))) continue;
    const std::string_view name = dict.key(i).text();
    const std::size_t dot = name.rfind('.');
    const std::string_view module = name.substr(0, dot == name.npos ? 0 : dot);
    if (!names.contains(module)) strange.emplace_back(name, module);
  }
  constexpr std::size_t kMost = 8;  // a state dict whose names were changed afterwards has more
  if (strange.size() > kMost) return;
  for (const Pair& pair : strange) {
    const auto alike = std::ranges::find_if(
        names, [&](std::string_view each) { return differ_in_one(each, pair.second); });
    if (alike != names.end()) found.emplace_back(pair.first, *alike);
  }
}

void search(Value value, unsigned depth, std::vector<Pair>& found) {
  constexpr unsigned kDepth = 3;
  if (!value.is_dict()) return;
  if (const auto modules = value.field("_metadata"); modules && modules->is_dict())
    return compare_names(value, *modules, found);
  for (std::size_t i = 0; depth < kDepth && i < value.pair_count(); ++i)
    search(value.value(i), depth + 1, found);
}

}  // namespace

std::optional<std::string> doubt_about_names(Value root) {
  std::vector<Pair> found;
  search(root, 0, found);
  if (found.empty()) return std::nullopt;
  const auto& [tensor, module] = found.front();
  return fmt::format(
      "{}: the names of {} tensors contradict the list of modules that torch saved with them, "
      "first {}, where the list has the module {}: one of the two is damaged",
      root.where(), found.size(), unishard::quote(tensor), unishard::quote(module));
}

}  // namespace unishard::converters::torch
