#pragma once
#include "storage/block_pool.hpp"

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace unishard {

/// Turns writes of any size and alignment into writes of whole, aligned blocks: bytes are collected
/// per block of the file, and the call that completes a block writes it. Thread-safe; at most
/// IoOptions::write_buffer_bytes are held in the process and a few blocks per file, so that places
/// which are filled late (headers) hold nothing up: the block that was touched longest ago leaves
/// as it is. Bytes of one place that are written twice at the same time have either value, as with
/// pwrite.
class WriteBehind {
 public:
  using Write = std::function<void(std::uint64_t offset, std::span<const std::byte> bytes)>;
  struct Limits {
    std::uint64_t file_bytes = 0;  ///< size that the file will have
    std::uint64_t held_bytes = 0;  ///< in the process
    bool is_zero = false;  ///< the file holds zeros only: blocks may be written with their gaps
  };
  /// `direct` gets whole blocks in aligned memory, `buffered` everything else; both may be called
  /// from several threads.
  WriteBehind(Limits limits, Write direct, Write buffered);

  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Afterwards no byte of [begin, end) is held. Rethrows what writing threw, and from then on
  /// always: bytes are lost, whoever was told first.
  void flush(std::uint64_t begin, std::uint64_t end);

 private:
  struct Pending {
    BlockPool::Block block;
    std::vector<std::pair<std::size_t, std::size_t>> filled;  ///< sorted, apart, half-open
    std::uint64_t last_use = 0;
    unsigned users = 0;    ///< threads that copy into it now
    bool leaving = false;  ///< being written; nobody may touch it
    bool is_whole(std::size_t length) const {
      return filled.front() == std::pair(std::size_t{0}, length);
    }
  };
  using Map = std::map<std::uint64_t, Pending>;
  using Lock = std::unique_lock<std::mutex>;

  void put(std::uint64_t index, std::size_t at, std::span<const std::byte> bytes);
  Pending* block_for(std::uint64_t index, Lock& lock);
  bool make_room(Lock& lock);
  void leave(Map::iterator item, Lock& lock);
  void mark_written(std::uint64_t index);
  bool fill_gaps(std::uint64_t index, Pending& pending) const;
  std::size_t length_of(std::uint64_t index) const;

  const Limits limits_;
  const Write direct_, buffered_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Map pending_;
  std::vector<bool> written_;  ///< blocks of which something was written to the file
  std::uint64_t clock_ = 0;
  std::exception_ptr failure_;  ///< the first
};

}  // namespace unishard
