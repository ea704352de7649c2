#pragma once
// Divides the parameters of a model into a few groups of consecutive layers, for curves that stay
// readable.
#include "unishard/format/catalog.hpp"

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard::tools {

/// Thread safety: const member functions are thread-safe.
class LayerGroups {
 public:
  /// Makes at most about `most` groups of the layers of `catalog`, and one of all other tensors.
  explicit LayerGroups(const Catalog& catalog, std::size_t most = 12);

  /// Returns, for example, {"other tensors", "h.0-3", "h.4-7"}.
  const std::vector<std::string>& labels() const { return labels_; }
  /// Returns an index into labels(); 0 for a name outside the layers.
  std::size_t group_of(std::string_view fqn) const;

 private:
  using Layer = std::pair<std::string, std::uint32_t>;  // text before the number, number
  std::map<Layer, std::size_t> group_;
  std::vector<std::string> labels_ = {"other tensors"};
};

}  // namespace unishard::tools
