#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace unishard {

/// Owns uninitialised memory for I/O that bypasses the page cache. The memory is page-aligned; from
/// 2 MiB on it is aligned to huge pages and the kernel is asked for them, because a disk request
/// covers a limited number of pages.
class HugeBuffer {
 public:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  HugeBuffer() = default;
  /// Throws: std::bad_alloc.
  explicit HugeBuffer(std::size_t bytes);

  std::span<std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace unishard
