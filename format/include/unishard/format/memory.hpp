#pragma once
// Limits the memory that the description in a file (manifest, tables, pickle, JSON) may take.
// Payload passes through buffers of known size and does not count. A reader charges memory before
// it allocates, so a small hostile file is refused in time.
#include <cstdint>
#include <string>

namespace unishard {

/// Returns the process-wide upper bound on the memory for the description of one file, in bytes. It
/// is unlimited until set_description_limit() is called. Thread-safe.
std::uint64_t description_limit();
/// Sets that bound for every MemoryBudget that is constructed afterwards. Thread-safe.
void set_description_limit(std::uint64_t bytes);

/// Address space of this process, in bytes.
struct MappedBytes {
  std::uint64_t all = 0;   ///< what RLIMIT_AS limits
  std::uint64_t data = 0;  ///< what RLIMIT_DATA limits
};
/// Returns what the process has mapped now; zeros where the kernel does not tell.
MappedBytes mapped_bytes();

/// Counts the memory that the description of one file takes. Not thread-safe.
class MemoryBudget {
 public:
  /// `what` is the file or field that messages name.
  explicit MemoryBudget(std::string what, std::uint64_t limit_bytes = description_limit())
      : what_(std::move(what)), limit_bytes_(limit_bytes) {}

  /// Adds `bytes` to the charges so far.
  /// Throws: MemoryLimit, naming the file and the limit, when the sum exceeds the limit.
  void charge(std::uint64_t bytes) {
    if (bytes > limit_bytes_ - used_bytes_) refuse(bytes);
    used_bytes_ += bytes;
  }

 private:
  [[noreturn]] void refuse(std::uint64_t bytes) const;

  std::string what_;
  std::uint64_t limit_bytes_, used_bytes_ = 0;
};

}  // namespace unishard
