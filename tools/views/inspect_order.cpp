#include "views/inspect_order.hpp"

#include <fmt/chrono.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <string_view>
#include <unordered_set>

namespace unishard::cli {

double norm_of(const TensorInfo& tensor) {
  return tensor.stats ? std::sqrt(tensor.stats->sum_squares) : 0;
}

std::vector<std::size_t> shown_tensors(const Catalog& catalog, const InspectView& view) {
  const auto matches = [&](const std::string& name) {
    return view.filter.empty() || ::fnmatch(view.filter.c_str(), name.c_str(), 0) == 0;
  };
  std::unordered_set<std::string_view> by_second_name;
  for (const Alias& alias : catalog.aliases) {
    if (matches(alias.fqn)) by_second_name.insert(alias.target);
  }
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    const std::string& name = catalog.tensors[i].fqn;
    if (matches(name) || by_second_name.contains(name)) shown.push_back(i);
  }
  const auto by = [&](auto key) {
    std::stable_sort(shown.begin(), shown.end(), [&](std::size_t a, std::size_t b) {
      return key(catalog.tensors[a]) > key(catalog.tensors[b]);
    });
  };
  switch (view.sort) {
    case SortBy::Model:
      break;
    case SortBy::Name:
      std::stable_sort(shown.begin(), shown.end(), [&](std::size_t a, std::size_t b) {
        return catalog.tensors[a].fqn < catalog.tensors[b].fqn;
      });
      break;
    case SortBy::Bytes:
      by([](const TensorInfo& tensor) { return tensor.bytes(); });
      break;
    case SortBy::Elements:
      by([](const TensorInfo& tensor) { return tensor.elements(); });
      break;
    case SortBy::Norm:
      by(norm_of);
      break;
  }
  return shown;
}

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string time_text(std::int64_t unix_seconds) {
  if (unix_seconds == 0) return {};
  const std::time_t seconds = unix_seconds;
  std::tm parts{};
  if (::gmtime_r(&seconds, &parts) == nullptr) return {};
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", parts);
}

}  // namespace unishard::cli
