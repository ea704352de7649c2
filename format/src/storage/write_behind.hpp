#pragma once
#include "storage/block_pool.hpp"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace unishard {

/// Turns writes of any size and alignment into writes of whole, aligned blocks: bytes are collected
/// per block of the file, and the call that completes a block writes it. Thread-safe; at most
/// IoOptions::write_buffer_bytes are held in the process. When memory is short, the block that was
/// touched longest ago leaves as it is. Bytes of one place that are written twice at the same time
/// have either value, as with pwrite.
class WriteBehind {
 public:
  using Write = std::function<void(std::uint64_t offset, std::span<const std::byte> bytes)>;
  /// `file_bytes` is the size that the file will have; `limit_bytes` bounds what is held. `direct`
  /// gets whole blocks in aligned memory, `buffered` everything else; both may be called from
  /// several threads.
  WriteBehind(std::uint64_t file_bytes, std::uint64_t limit_bytes, Write direct, Write buffered);

  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Afterwards no byte of [begin, end) is held. Rethrows what writing threw.
  void flush(std::uint64_t begin, std::uint64_t end);

 private:
  struct Pending {
    BlockPool::Block block;
    std::vector<std::pair<std::size_t, std::size_t>> filled;  ///< sorted, apart, half-open
    std::uint64_t last_use = 0;
    unsigned users = 0;    ///< threads that copy into it now
    bool leaving = false;  ///< being written; nobody may touch it
  };
  using Map = std::map<std::uint64_t, Pending>;
  using Lock = std::unique_lock<std::mutex>;

  void put(std::uint64_t index, std::size_t at, std::span<const std::byte> bytes);
  Pending* block_for(std::uint64_t index, Lock& lock);
  bool make_room(Lock& lock);
  void leave(Map::iterator item, Lock& lock);
  std::size_t length_of(std::uint64_t index) const;

  const std::uint64_t file_bytes_, limit_bytes_;
  const Write direct_, buffered_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Map pending_;
  std::uint64_t clock_ = 0;
};

}  // namespace unishard
