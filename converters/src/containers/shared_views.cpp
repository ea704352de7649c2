#include "containers/shared_views.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

namespace unishard::converters::torch {
namespace {

/// The bytes from a view's first element to its last.
struct Extent {
  std::uint64_t begin = 0, end = 0;
  bool is_filled = false;  ///< the view has all of them
  const std::string* name = nullptr;
};

Extent extent_of(const ViewIdentity& view, const std::string& name) {
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < view.shape.size(); ++i) last += (view.shape[i] - 1) * view.strides[i];
  const std::uint64_t width = size_of(view.dtype);
  return {view.offset * width, (view.offset + last + 1) * width,
          element_count(view.shape) >= last + 1, &name};
}

/// Adds the names of views that begin in what an earlier one fills, and of the latter.
void find_shared(std::vector<Extent>& extents, std::set<std::string>& names) {
  std::ranges::sort(extents, {},
                    [](const Extent& each) { return std::pair(each.begin, ~each.end); });
  const Extent* filled = nullptr;  // the one that reaches furthest
  for (const Extent& each : extents) {
    if (filled != nullptr && each.begin < filled->end) names.insert({*filled->name, *each.name});
    if (each.is_filled && (filled == nullptr || each.end > filled->end)) filled = &each;
  }
}

}  // namespace

std::optional<std::string> note_shared_parts(const ViewNames& views) {
  std::set<std::string> names;
  std::vector<Extent> extents;
  const std::pair<std::string, ViewIdentity>* last = nullptr;
  for (const auto& [view, name] : views) {
    const bool is_same = last != nullptr && last->first == view.first &&
                         last->second.storage_key == view.second.storage_key;
    if (!is_same) {
      find_shared(extents, names);
      extents.clear();
    }
    if (element_count(view.second.shape) > 0) extents.push_back(extent_of(view.second, name));
    last = &view;
  }
  find_shared(extents, names);
  if (names.empty()) return std::nullopt;
  const auto first = names.begin();
  return fmt::format(
      "{} tensors have elements in common in memory, because they are views of parts of one "
      "storage ({} and {} first): each is a tensor of its own in every result, with the same "
      "values",
      names.size(), unishard::quote(*first), unishard::quote(*std::next(first)));
}

}  // namespace unishard::converters::torch
