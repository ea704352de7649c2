#include "workflows/report/layer_groups.hpp"

#include "workflows/name_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace unishard::tools {

LayerGroups::LayerGroups(const Catalog& catalog, std::size_t most) {
  std::map<std::string, std::set<std::uint32_t>> families;
  std::size_t layers = 0;
  for (const TensorInfo& tensor : catalog.tensors) {
    const NameParts parts = split_name(tensor.fqn);
    const std::optional<std::uint32_t> layer = parts.layer();
    if (layer && families[parts.texts.front()].insert(*layer).second) ++layers;
  }
  const std::size_t size = std::max<std::size_t>(1, (layers + most - 1) / most);
  for (const auto& [family, numbers] : families) {
    if (labels_.size() > 2 * most) break;  // the rest stays among the others
    const std::vector<std::uint32_t> sorted(numbers.begin(), numbers.end());
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      if (i % size == 0) {
        const std::uint32_t last = sorted[std::min(i + size, sorted.size()) - 1];
        labels_.push_back(last == sorted[i] ? fmt::format("{}{}", family, last)
                                            : fmt::format("{}{}-{}", family, sorted[i], last));
      }
      group_[{family, sorted[i]}] = labels_.size() - 1;
    }
  }
}

std::size_t LayerGroups::group_of(std::string_view fqn) const {
  const NameParts parts = split_name(fqn);
  const std::optional<std::uint32_t> layer = parts.layer();
  if (!layer) return 0;
  const auto found = group_.find({parts.texts.front(), *layer});
  return found == group_.end() ? 0 : found->second;
}

}  // namespace unishard::tools
