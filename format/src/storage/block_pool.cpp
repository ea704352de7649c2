#include "storage/block_pool.hpp"

#include <algorithm>
#include <utility>

namespace unishard {

BlockPool::Block::Block(Block&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      memory_(std::move(other.memory_)),
      count_(other.count_) {}

BlockPool::Block& BlockPool::Block::operator=(Block&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(memory_, other.memory_);
  std::swap(count_, other.count_);
  return *this;
}

BlockPool::Block::~Block() {
  if (pool_ != nullptr) pool_->give_back(std::move(memory_), *count_);
}

BlockPool::Block BlockPool::take(std::uint64_t limit_bytes) {
  const std::size_t limit = std::max<std::size_t>(1, limit_bytes / kBlockBytes);
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [&] { return transferring_ < limit; });
  return take_memory(transferring_);
}

std::optional<BlockPool::Block> BlockPool::try_take(std::uint64_t limit_bytes) {
  const std::scoped_lock lock(mutex_);
  if (collecting_ >= limit_bytes / kBlockBytes) return std::nullopt;
  return take_memory(collecting_);
}

BlockPool::Block BlockPool::take_memory(std::size_t& count) {
  HugeBuffer memory;
  if (free_.empty()) {
    memory = HugeBuffer(kBlockBytes);
  } else {
    memory = std::move(free_.back());
    free_.pop_back();
  }
  ++count;
  return {this, std::move(memory), &count};
}

void BlockPool::give_back(HugeBuffer memory, std::size_t& count) {
  {
    const std::scoped_lock lock(mutex_);
    --count;
    free_.push_back(std::move(memory));
  }
  returned_.notify_one();
}

BlockPool& block_pool() {
  static auto* const pool = new BlockPool();  // never destroyed: files may outlive static objects
  return *pool;
}

}  // namespace unishard
