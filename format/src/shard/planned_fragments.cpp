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

ElementMap checked_map(const Fragment& fragment, const TensorInfo& tensor) {
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
    fragments_[i].range = checked_map(fragments_[i], info).bounds();
    if (info.derived) continue;
    const DataSetEntry key{info.state, info.dtype, 0, 0, 0};
    sets.emplace(key.name(), key);
  }
  for (auto& [name, item] : sets) data_sets_.push_back(std::move(item));
  places_.reserve(fragments_.size());
  for (const Fragment& fragment : fragments_)
    add_place(fragment, catalog_.tensors[fragment.tensor]);
  if (boxes_bytes_ > limits::kBoxesBytes) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: {} bytes of boxes are above the limit of {}", path.native(),
                      boxes_bytes_, limits::kBoxesBytes));
  }
  collect_names();
}

ElementMap PlannedFragments::map(std::size_t fragment) const {
  const Fragment& it = fragments_[fragment];
  return it.box ? ElementMap(tensor(fragment).shape, *it.box) : ElementMap(it.range);
}

IndexRow PlannedFragments::row(std::size_t fragment) const {
  const Place& place = places_[fragment];
  IndexRow row;
  row.tensor = fragments_[fragment].tensor;
  row.data_set = place.data_set;
  row.range = fragments_[fragment].range;
  row.element_offset = place.element_offset;
  row.name_offset = place.name_offset;
  row.name_bytes = place.name_bytes;
  row.box = place.box;
  row.elements = map(fragment).elements();
  return row;
}

void PlannedFragments::add_place(const Fragment& fragment, const TensorInfo& tensor) {
  const ElementMap map = this->map(places_.size());
  Place& place = places_.emplace_back();
  if (fragment.box && !map.is_range()) {
    place.box = static_cast<std::uint32_t>(1 + boxes_bytes_ / sizeof(std::uint64_t));
    boxes_bytes_ += box_words(tensor.shape.size()) * sizeof(std::uint64_t);
  }
  if (tensor.derived) return;
  const auto found = std::ranges::find_if(data_sets_, [&](const DataSetEntry& item) {
    return item.state == tensor.state && item.dtype == tensor.dtype;
  });
  place.data_set = static_cast<std::uint32_t>(found - data_sets_.begin());
  place.element_offset = found->elements;
  found->elements = checked_add(found->elements, map.elements(), "a data set's elements");
}

void PlannedFragments::collect_names() {
  std::map<std::uint32_t, std::pair<std::uint64_t, std::uint32_t>> known;
  for (std::size_t i = 0; i < size(); ++i) {
    auto [name_of, fresh] = known.try_emplace(fragments_[i].tensor);
    if (fresh) {
      const TensorInfo& info = tensor(i);
      const std::string name = info.fqn + '\0' + info.state;
      name_of->second = {names_.size(), static_cast<std::uint32_t>(name.size())};
      names_.insert(names_.end(), name.begin(), name.end());
    }
    std::tie(places_[i].name_offset, places_[i].name_bytes) = name_of->second;
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
