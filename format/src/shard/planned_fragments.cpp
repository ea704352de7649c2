#include "shard/planned_fragments.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "shard/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace unishard::detail {
namespace {

ElementMap map_of(const Fragment& fragment, const TensorInfo& tensor) {
  if (!fragment.box && (fragment.range.empty() || fragment.range.end > tensor.elements())) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: fragment {} to {} is not within its {} elements", tensor.label(),
                      fragment.range.begin, fragment.range.end, tensor.elements()));
  }
  if (!fragment.box) return ElementMap(fragment.range);
  if (const auto problem = box_problem(tensor.shape, *fragment.box)) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: fragment {}: {}", tensor.label(), to_text(*fragment.box), *problem));
  }
  return {tensor.shape, *fragment.box};
}

}  // namespace

PlannedFragments::PlannedFragments(const Catalog& catalog, std::vector<Fragment> fragments,
                                   const Path& path)
    : catalog_(catalog), fragments_(std::move(fragments)) {
  std::map<std::string, DataSetEntry> sets;
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    const TensorInfo& info = catalog_.tensors.at(fragments_[i].tensor);
    maps_.push_back(map_of(fragments_[i], info));
    fragments_[i].range = maps_[i].bounds();
    if (info.derived) continue;
    const DataSetEntry key{info.state, info.dtype, 0, 0, 0};
    sets.emplace(key.name(), key);
  }
  for (auto& [name, item] : sets) data_sets_.push_back(std::move(item));
  for (const Fragment& fragment : fragments_) add_row(fragment, catalog_.tensors[fragment.tensor]);
  if (boxes_bytes_ > limits::kBoxesBytes) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: {} bytes of boxes are above the limit of {}", path.native(),
                      boxes_bytes_, limits::kBoxesBytes));
  }
  collect_names();
}

void PlannedFragments::add_row(const Fragment& fragment, const TensorInfo& tensor) {
  const ElementMap& map = maps_[rows_.size()];
  IndexRow& row = rows_.emplace_back();
  row.tensor = fragment.tensor;
  row.data_set = kDerivedDataSet;
  row.range = fragment.range;
  row.elements = map.elements();
  if (fragment.box && !map.is_range()) {
    row.box = static_cast<std::uint32_t>(1 + boxes_bytes_ / sizeof(std::uint64_t));
    boxes_bytes_ += box_words(tensor.shape.size()) * sizeof(std::uint64_t);
  }
  if (tensor.derived) return;
  const auto found = std::ranges::find_if(data_sets_, [&](const DataSetEntry& item) {
    return item.state == tensor.state && item.dtype == tensor.dtype;
  });
  row.data_set = static_cast<std::uint32_t>(found - data_sets_.begin());
  row.element_offset = found->elements;
  found->elements = checked_add(found->elements, map.elements(), "a data set's elements");
}

void PlannedFragments::collect_names() {
  std::map<std::uint32_t, std::pair<std::uint64_t, std::uint32_t>> known;
  for (IndexRow& row : rows_) {
    auto [place, fresh] = known.try_emplace(row.tensor);
    if (fresh) {
      const TensorInfo& tensor = catalog_.tensors[row.tensor];
      const std::string name = tensor.fqn + '\0' + tensor.state;
      place->second = {names_.size(), static_cast<std::uint32_t>(name.size())};
      names_.insert(names_.end(), name.begin(), name.end());
    }
    std::tie(row.name_offset, row.name_bytes) = place->second;
  }
}

Fragment PlannedFragments::stored(std::size_t fragment) const {
  Fragment out = fragments_[fragment];
  if (!is_box(fragment)) out.box = nullptr;
  return out;
}

std::vector<std::byte> PlannedFragments::box_table(
    const std::vector<std::uint64_t>& contributions) const {
  std::vector<std::uint64_t> words;
  for (std::size_t i = 0; i < size(); ++i)
    if (is_box(i)) append_box(words, *fragments_[i].box, contributions[i]);
  return encode_words(words);
}

}  // namespace unishard::detail
