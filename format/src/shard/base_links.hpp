#pragma once
// Hard links to the files of earlier saves, in the folder of a shard that is being written. They
// are made before any chunk is compared, so that another process cannot delete the files meanwhile;
// links of which no chunk is used are removed.
#include "unishard/format/shard_base.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace unishard::detail {

/// Thread safety: find() is thread-safe, the other functions are not.
class BaseLinks {
 public:
  /// Links the files of `base` into `folder`. Ignores a file that is missing or that the file
  /// system does not link.
  /// Lifetime: `storage` must outlive this object.
  /// Throws: what Storage::hard_link() throws, except Unsupported and NotFound.
  BaseLinks(Storage& storage, Path folder, std::shared_ptr<const ShardBase> base);
  /// Removes all links unless keep() was called.
  ~BaseLinks();
  BaseLinks(const BaseLinks&) = delete;
  BaseLinks& operator=(const BaseLinks&) = delete;

  bool is_empty() const { return std::ranges::find(linked_, true) == linked_.end(); }
  /// Do the same as ShardBase::find(); the first returns nullptr when the chunk's file is not
  /// linked.
  const ChunkRow* find(const DataSetEntry& set, std::uint64_t chunk) const;
  const ShardBase::Known* find(const TensorInfo& tensor, const Fragment& fragment) const {
    return base_->find(tensor, fragment);
  }
  /// Keeps the links that `tables` use and removes the others. Renumbers ChunkRow::file in `tables`
  /// for the files that it returns.
  /// Pre: the rows that point into a base come from find().
  std::vector<BaseFile> keep(std::vector<std::vector<ChunkRow>>& tables);

 private:
  void remove_unless(const std::vector<bool>& wanted);

  Storage& storage_;
  const Path folder_;
  const std::shared_ptr<const ShardBase> base_;
  std::vector<bool> linked_;  ///< parallel to base_->holders()
  bool kept_ = false;
};

}  // namespace unishard::detail
