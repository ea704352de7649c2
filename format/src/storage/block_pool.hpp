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

/// The process's blocks. Memory is touched once and used again and again. Thread-safe.
class BlockPool {
 public:
  /// Returns its memory to the pool when it goes.
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
    std::size_t* count_ = nullptr;  ///< of its kind in the pool
  };

  /// For the time of one transfer. Waits while others have `limit_bytes` of such blocks, so the
  /// caller must not have one already. One can always be had.
  Block take(std::uint64_t limit_bytes);
  /// To collect bytes in; nullopt when `limit_bytes` of such blocks are out already.
  std::optional<Block> try_take(std::uint64_t limit_bytes);

 private:
  Block take_memory(std::size_t& count);  // pre: mutex_ held
  void give_back(HugeBuffer memory, std::size_t& count);

  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<HugeBuffer> free_;
  std::size_t transferring_ = 0, collecting_ = 0;
};

BlockPool& block_pool();

}  // namespace unishard
