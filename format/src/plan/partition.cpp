#include "unishard/format/partition.hpp"

#include "unishard/format/checked.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace unishard {
namespace {

struct Place {
  std::size_t vector = 0;
  std::size_t slot = 0;
};

// A flat vector with, for each of its parameters, the tensors that are partitioned like it.
struct FlatVector {
  FlatLayout layout;
  std::vector<std::vector<std::uint32_t>> tensors;  // [slot]

  // Slots are sorted and disjoint, so those of a rank are consecutive.
  void append_owned(std::uint32_t rank, std::uint32_t world_size,
                    std::vector<Fragment>& out) const {
    const std::uint64_t shard = layout.shard_length(world_size);
    const std::uint64_t begin = checked_mul(shard, rank, "a shard's offset");
    const auto first = std::ranges::upper_bound(
        layout.slots, begin, {}, [](const FlatSlot& slot) { return slot.offset + slot.elements; });
    for (auto slot = static_cast<std::size_t>(first - layout.slots.begin());
         slot < layout.slots.size() && layout.slots[slot].offset < begin + shard; ++slot) {
      const ElementRange range = layout.owned(slot, rank, world_size);
      if (range.empty()) continue;
      for (const std::uint32_t tensor : tensors[slot]) out.push_back({tensor, range});
    }
  }
};

std::unordered_map<std::string_view, std::uint64_t> parameter_elements(const Catalog& catalog) {
  std::unordered_map<std::string_view, std::uint64_t> elements;
  for (const TensorInfo& tensor : catalog.tensors) {
    const bool is_weight = tensor.state == state::kFp32 || tensor.state == state::kWeights;
    if (is_weight || !elements.contains(tensor.fqn)) elements[tensor.fqn] = tensor.elements();
  }
  return elements;
}

// The types of frozen weights, by fqn.
std::unordered_map<std::string_view, DType> frozen_types(const Catalog& catalog) {
  std::unordered_map<std::string_view, DType> types;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (tensor.frozen && tensor.state == state::kWeights) types[tensor.fqn] = tensor.dtype;
  }
  return types;
}

// The parameters of flat vectors at the catalog's stage: of each unit the trained ones from stage 1
// on, and at stage 3 the frozen ones of each type.
std::vector<std::vector<std::string_view>> flat_parameters(const Catalog& catalog) {
  std::vector<std::vector<std::string_view>> vectors;
  if (catalog.stage == 0) return vectors;
  const auto types = frozen_types(catalog);
  for (const UnitLayout& unit : catalog.units) {
    std::vector<std::string_view> trained;
    std::map<DType, std::vector<std::string_view>> frozen;
    for (const std::string& fqn : unit.fqns) {
      const auto type = types.find(fqn);
      (type == types.end() ? trained : frozen[type->second]).push_back(fqn);
    }
    vectors.push_back(std::move(trained));
    if (catalog.stage < 3) continue;
    for (auto& [type, fqns] : frozen) vectors.push_back(std::move(fqns));
  }
  return vectors;
}

// A position in the concatenation of the replicated tensors.
struct Cut {
  std::size_t item = 0;
  std::uint64_t element = 0;
};

// The concatenation of the replicated tensors, cut into ranges of about equal bytes.
class Spread {
 public:
  explicit Spread(const Catalog& catalog) : catalog_(catalog) {}

  void add(std::uint32_t tensor) {
    tensors_.push_back(tensor);
    total_ = checked_add(total_, catalog_.tensors[tensor].bytes(), "the bytes of replicated data");
    ends_.push_back(total_);
  }

  void append_run(std::uint32_t rank, std::uint32_t world_size, std::vector<Fragment>& out) const {
    const Cut begin = cut(rank, world_size), end = cut(rank + 1, world_size);
    for (std::size_t item = begin.item; item <= end.item && item < tensors_.size(); ++item) {
      const std::uint64_t first = item == begin.item ? begin.element : 0;
      const std::uint64_t last =
          item == end.item ? end.element : catalog_.tensors[tensors_[item]].elements();
      if (first < last) out.push_back({tensors_[item], {first, last}});
    }
  }

 private:
  Cut cut(std::uint32_t rank, std::uint32_t world_size) const {
    if (rank >= world_size) return {tensors_.size(), 0};
    __extension__ using Wide = unsigned __int128;
    const auto byte = static_cast<std::uint64_t>(Wide{total_} * rank / world_size);
    const auto item = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), byte) -
                                               ends_.begin());
    if (item == tensors_.size()) return {item, 0};
    const TensorInfo& tensor = catalog_.tensors[tensors_[item]];
    const std::uint64_t element = (byte - (ends_[item] - tensor.bytes())) / size_of(tensor.dtype);
    return {item, element / kShardBlock * kShardBlock};
  }

  const Catalog& catalog_;
  std::vector<std::uint32_t> tensors_;
  std::vector<std::uint64_t> ends_;  // byte offset in the concatenation where each tensor ends
  std::uint64_t total_ = 0;
};

}  // namespace

std::uint64_t FlatLayout::shard_length(std::uint32_t world_size) const {
  const std::uint64_t even = length / world_size + (length % world_size != 0);
  return round_up(even, kShardBlock, "a shard's length");
}

ElementRange FlatLayout::owned(std::size_t index, std::uint32_t rank,
                               std::uint32_t world_size) const {
  const std::uint64_t shard = shard_length(world_size);
  const FlatSlot& slot = slots[index];
  const std::uint64_t begin = checked_mul(shard, rank, "a shard's offset");
  const ElementRange mine{begin, checked_add(begin, shard, "a shard's end")};
  const ElementRange flat = intersect(mine, {slot.offset, slot.offset + slot.elements});
  if (flat.empty()) return {};
  return {flat.begin - slot.offset, flat.end - slot.offset};
}

Fragment Fragment::of_box(std::uint32_t number, const TensorInfo& tensor, Box box) {
  return {number, ElementMap(tensor.shape, box).bounds(),
          std::make_shared<const Box>(std::move(box))};
}

bool Fragment::operator==(const Fragment& other) const {
  if (tensor != other.tensor || range != other.range || !box != !other.box) return false;
  return !box || *box == *other.box;
}

std::uint64_t bytes_of(const Catalog& catalog, std::span<const Fragment> fragments) {
  std::uint64_t bytes = 0;
  for (const Fragment& fragment : fragments)
    bytes += fragment.range.size() * size_of(catalog.tensors[fragment.tensor].dtype);
  return bytes;
}

FlatLayout flat_layout(std::span<const std::uint64_t> parameter_elements) {
  FlatLayout layout;
  for (const std::uint64_t elements : parameter_elements) {
    layout.slots.push_back({layout.length, elements});
    layout.length = round_up(checked_add(layout.length, elements, "a unit's length"), kSlotAlign,
                             "a unit's length");
  }
  return layout;
}

struct ShardPlans::Impl {
  explicit Impl(const Catalog& catalog) : world_size(catalog.world_size), spread(catalog) {
    const auto elements = parameter_elements(catalog);
    std::unordered_map<std::string_view, Place> places;
    for (const auto& fqns : flat_parameters(catalog)) {
      std::vector<std::uint64_t> sizes;
      for (const std::string_view fqn : fqns) {
        places[fqn] = {vectors.size(), sizes.size()};
        sizes.push_back(elements.contains(fqn) ? elements.at(fqn) : 0);
      }
      vectors.push_back(
          {flat_layout(sizes), std::vector<std::vector<std::uint32_t>>(sizes.size())});
    }
    for (std::uint32_t number = 0; number < catalog.tensors.size(); ++number) {
      const TensorInfo& tensor = catalog.tensors[number];
      const auto place = places.find(tensor.fqn);
      const bool is_flat =
          place != places.end() && tensor.state != state::kBuffer &&
          vectors[place->second.vector].layout.slots[place->second.slot].elements ==
              tensor.elements();
      if (is_flat) {
        vectors[place->second.vector].tensors[place->second.slot].push_back(number);
      } else {
        spread.add(number);
      }
    }
  }

  const std::uint32_t world_size;
  std::vector<FlatVector> vectors;
  Spread spread;
};

ShardPlans::ShardPlans(const Catalog& catalog) : impl_(std::make_unique<Impl>(catalog)) {}
ShardPlans::~ShardPlans() = default;

std::vector<Fragment> ShardPlans::shard(std::uint32_t rank) const {
  std::vector<Fragment> fragments;
  for (const FlatVector& vector : impl_->vectors)
    vector.append_owned(rank, impl_->world_size, fragments);
  impl_->spread.append_run(rank, impl_->world_size, fragments);
  std::sort(fragments.begin(), fragments.end(), [](const Fragment& a, const Fragment& b) {
    return a.tensor != b.tensor ? a.tensor < b.tensor : a.range.begin < b.range.begin;
  });
  return fragments;
}

std::vector<Fragment> plan_shard(const Catalog& catalog, std::uint32_t rank) {
  return ShardPlans(catalog).shard(rank);
}

}  // namespace unishard
