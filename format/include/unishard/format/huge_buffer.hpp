#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace unishard {

/// Uninitialised memory for I/O past the page cache: page-aligned, and on huge pages from 2 MiB on
/// (a request to the disk takes a limited number of pages, so their size decides its speed).
class HugeBuffer {
 public:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  HugeBuffer() = default;
  /// Throws std::bad_alloc.
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
