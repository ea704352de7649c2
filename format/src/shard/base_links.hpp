#pragma once
// The files of earlier saves beside a shard that is being written: linked before anything is
// compared, so that nobody's deletion takes them away, and removed again where no chunk is shared.
#include "unishard/format/shard_base.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace unishard::detail {

/// find() is thread-safe, the rest is not.
class BaseLinks {
 public:
  /// Links the base's files into `folder`. A file that cannot be linked (no hard links here, or it
  /// is gone) is not shared with.
  BaseLinks(Storage& storage, Path folder, std::shared_ptr<const ShardBase> base);
  /// Removes what keep() has not kept.
  ~BaseLinks();
  BaseLinks(const BaseLinks&) = delete;
  BaseLinks& operator=(const BaseLinks&) = delete;

  bool is_empty() const { return std::ranges::find(linked_, true) == linked_.end(); }
  const ChunkRow* find(const DataSetEntry& set, std::uint64_t chunk) const;
  const ShardBase::Known* find(const TensorInfo& tensor, ElementRange range) const {
    return base_->find(tensor, range);
  }
  /// Keeps the links that `tables` (chunk tables with rows that find() gave) point to and removes
  /// the others; the rows then point into the files that are returned.
  std::vector<BaseFile> keep(std::vector<std::vector<ChunkRow>>& tables);

 private:
  void remove_unless(const std::vector<bool>& wanted);

  Storage& storage_;
  const Path folder_;
  const std::shared_ptr<const ShardBase> base_;
  std::vector<bool> linked_;  ///< as base_->holders()
  bool kept_ = false;
};

}  // namespace unishard::detail
