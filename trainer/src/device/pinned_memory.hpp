#pragma once
// Host memory that a device can read and write by itself. cuda_pinned_memory.cpp implements it with
// the CUDA toolkit, no_cuda_pinned_memory.cpp without.
#include <cstddef>
#include <span>

namespace unishard::trainer::detail {

/// Pins host memory as long as it lives. If pinning fails, copies into the memory are slower.
/// Lifetime: the memory must outlive this object.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::span<std::byte> memory);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

 private:
  void* pinned_ = nullptr;
};

}  // namespace unishard::trainer::detail
