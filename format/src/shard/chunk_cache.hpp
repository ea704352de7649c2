#pragma once
#include "unishard/format/shard_reader.hpp"

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

namespace unishard {

class ChunkCache {
 public:
  using Bytes = std::shared_ptr<std::vector<std::byte>>;  ///< not changed while shared

  explicit ChunkCache(std::uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  /// Raises the capacity to at least `capacity_bytes`.
  void grow(std::uint64_t capacity_bytes) {
    const std::scoped_lock lock(mutex_);
    capacity_bytes_ = std::max(capacity_bytes_, capacity_bytes);
  }

  /// Returns chunk `chunk` of the shard that `owner` identifies; nullptr when it is not cached.
  Bytes find(const void* owner, std::uint64_t chunk) {
    const std::scoped_lock lock(mutex_);
    for (auto item = items_.begin(); item != items_.end(); ++item) {
      if (item->owner != owner || item->chunk != chunk) continue;
      items_.splice(items_.begin(), items_, item);
      return item->bytes;
    }
    return nullptr;
  }

  /// Returns memory for a chunk; reuses that of an evicted chunk when no reader still holds it.
  std::shared_ptr<std::vector<std::byte>> memory(std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    if (!spare_ || spare_.use_count() > 1) return std::make_shared<std::vector<std::byte>>(bytes);
    auto taken = std::move(spare_);
    taken->resize(bytes);
    return taken;
  }

  /// Caches a chunk and evicts the least recently used ones beyond the capacity.
  void keep(const void* owner, std::uint64_t chunk, Bytes bytes) {
    const std::scoped_lock lock(mutex_);
    held_bytes_ += bytes->size();
    items_.push_front({owner, chunk, std::move(bytes)});
    while (held_bytes_ > capacity_bytes_ && items_.size() > 1) {
      held_bytes_ -= items_.back().bytes->size();
      spare_ = std::move(items_.back().bytes);
      items_.pop_back();
    }
  }

 private:
  struct Item {
    const void* owner;
    std::uint64_t chunk;
    Bytes bytes;
  };
  std::uint64_t capacity_bytes_;
  std::mutex mutex_;
  std::list<Item> items_;  // most recently used first
  std::uint64_t held_bytes_ = 0;
  Bytes spare_;
};

}  // namespace unishard
