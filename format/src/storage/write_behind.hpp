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

/// Turns writes of any size and alignment into writes of whole, aligned blocks. Bytes are collected
/// per block of the file, and the call that completes a block writes it.
/// At most IoOptions::write_buffer_bytes are held back in the process, and a few blocks per file.
/// When there are too many, the least recently used block is written as it is; a block that is
/// filled late (a header) therefore delays nothing.
/// Thread-safe. When two threads write the same place at the same time, it gets either value, as
/// with pwrite().
class WriteBehind {
 public:
  using Write = std::function<void(std::uint64_t offset, std::span<const std::byte> bytes)>;
  struct Limits {
    std::uint64_t file_bytes = 0;  ///< final size of the file
    std::uint64_t held_bytes = 0;  ///< limit for the process
    bool is_zero = false;  ///< the file holds only zeros, so incomplete blocks may be written whole
  };
  /// `direct` receives whole blocks in aligned memory, `buffered` everything else. Both may be
  /// called from several threads.
  WriteBehind(Limits limits, Write direct, Write buffered);

  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Writes all held-back bytes of [begin, end).
  /// Throws: what `direct` or `buffered` threw. After a failure every later flush() throws it too,
  /// because bytes were lost.
  void flush(std::uint64_t begin, std::uint64_t end);

 private:
  struct Pending {
    BlockPool::Block block;
    std::vector<std::pair<std::size_t, std::size_t>>
        filled;  ///< sorted, disjoint, half-open intervals
    std::uint64_t last_use = 0;
    unsigned users = 0;    ///< threads that copy into it now
    bool leaving = false;  ///< being written; no thread may touch it
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
  std::vector<bool> written_;  ///< blocks of which some bytes were written to the file
  std::uint64_t clock_ = 0;
  std::exception_ptr failure_;  ///< the first failure
};

}  // namespace unishard
