#pragma once
#include "unishard/format/huge_buffer.hpp"
#include "unishard/format/io.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace unishard {

/// Pool of the process's I/O blocks of kBlockBytes. Blocks are reused, so their pages are touched
/// only once. Thread-safe.
class BlockPool {
 public:
  /// Owns one block; the destructor returns it to the pool.
  /// Lifetime: the pool must outlive the block.
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept;
    Block& operator=(Block&& other) noexcept;
    ~Block();
    std::span<std::byte> bytes() const { return memory_.bytes(); }

   private:
    friend class BlockPool;
    Block(BlockPool* pool, HugeBuffer memory, std::size_t* count)
        : pool_(pool), memory_(std::move(memory)), count_(count) {}
    BlockPool* pool_ = nullptr;
    HugeBuffer memory_;
    std::size_t* count_ = nullptr;  ///< the pool's counter of blocks of this kind
  };

  /// Takes a block for one transfer. Waits while transfers use `limit_bytes` of blocks, but always
  /// grants one.
  /// Pre: the calling thread holds no block from take(); otherwise threads may deadlock.
  Block take(std::uint64_t limit_bytes);
  /// Takes a block in which writes are collected; nullopt when such blocks already use
  /// `limit_bytes`.
  std::optional<Block> try_take(std::uint64_t limit_bytes);

 private:
  Block take_memory(std::size_t& count);  // pre: mutex_ held
  void give_back(HugeBuffer memory, std::size_t& count);

  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<HugeBuffer> free_;
  std::size_t transferring_ = 0, collecting_ = 0;
};

/// Returns the pool of the process. It is never destroyed.
BlockPool& block_pool();

}  // namespace unishard
