#pragma once
// Bounds the memory that a file's content may ask for: manifests, tables, pickles, JSON. Payload
// goes through buffers of a known size and does not count. A reader charges what it is about to
// take, so that a small hostile file is refused before memory is taken, not after.
#include <cstdint>
#include <string>

namespace unishard {

/// Upper bound on the memory for the description of one file. No bound of its own, beside those in
/// limits.hpp, until a program sets one. Thread-safe.
std::uint64_t description_limit();
void set_description_limit(std::uint64_t bytes);

/// Counts the memory that the description of one file takes. Not thread-safe.
class MemoryBudget {
 public:
  /// `what` names the file or field in messages.
  explicit MemoryBudget(std::string what, std::uint64_t limit_bytes = description_limit())
      : what_(std::move(what)), limit_bytes_(limit_bytes) {}

  /// Throws MemoryLimit naming the file and the limit when the sum of all charges is above it.
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
