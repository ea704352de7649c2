#pragma once
// The fragments of a shard that is being written, and their places in its data sets and tables.
#include "unishard/format/partition.hpp"
#include "unishard/format/shard_entry.hpp"
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <vector>

namespace unishard::detail {

/// Immutable, and so thread-safe.
class PlannedFragments {
 public:
  /// `path` is the shard's, for messages.
  /// Lifetime: `catalog` must outlive this object.
  /// Throws: InvalidArgument, naming the tensor, when a fragment is not within its tensor.
  PlannedFragments(const Catalog& catalog, std::vector<Fragment> fragments, const Path& path);

  const std::vector<Fragment>& all() const { return fragments_; }
  std::size_t size() const { return fragments_.size(); }
  const TensorInfo& tensor(std::size_t fragment) const {
    return catalog_.tensors[fragments_.at(fragment).tensor];
  }
  /// Made anew at each call: kept, the maps would be as large as the index.
  ElementMap map(std::size_t fragment) const;
  /// Returns true for a fragment that is stored as a box. A box that is a range is stored as one.
  bool is_box(std::size_t fragment) const { return places_[fragment].box != 0; }
  /// Returns the number of the fragment's first element in the ranges that ShardWriter::write()
  /// takes.
  std::uint64_t first_number(std::size_t fragment) const {
    return fragments_[fragment].box ? 0 : fragments_[fragment].range.begin;
  }
  /// Returns the fragment as it is stored.
  Fragment stored(std::size_t fragment) const;
  /// Returns the row of /index, without digest and statistics.
  IndexRow row(std::size_t fragment) const;

  /// Return the data sets without offsets, the content of /names and the bytes of /boxes.
  const std::vector<DataSetEntry>& data_sets() const { return data_sets_; }
  const std::vector<char>& names() const { return names_; }
  std::uint64_t boxes_bytes() const { return boxes_bytes_; }
  /// Returns the content of /boxes. `contributions` has one item for each fragment.
  std::vector<std::byte> box_table(const std::vector<std::uint64_t>& contributions) const;

 private:
  /// What an IndexRow has beside its fragment: a quarter of the memory of rows.
  struct Place {
    std::uint64_t element_offset = 0, name_offset = 0;
    std::uint32_t data_set = kDerivedDataSet, name_bytes = 0, box = 0;
  };

  void add_place(const Fragment& fragment, const TensorInfo& tensor);
  void collect_names();

  const Catalog& catalog_;
  std::vector<Fragment> fragments_;
  std::vector<Place> places_;  ///< one per fragment
  std::vector<DataSetEntry> data_sets_;
  std::vector<char> names_;
  std::uint64_t boxes_bytes_ = 0;
};

}  // namespace unishard::detail
