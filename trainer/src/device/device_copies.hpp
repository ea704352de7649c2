#pragma once
// What of the state is in a device's memory (frozen parameters, buffers) on its way to host memory:
// on a stream of its own, beside what the device computes, into memory that is pinned, to which the
// device writes by itself. cuda_copies.cpp with the CUDA toolkit, no_cuda_copies.cpp without.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <span>

namespace unishard::trainer::detail {

/// Host memory that is pinned as long as this lives. Where it cannot be, copies into it are slower.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::span<std::byte> memory);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

 private:
  void* pinned_ = nullptr;
};

/// Copies that are under way; the destructor waits for them. One thread at a time.
class DeviceCopies {
 public:
  DeviceCopies() = default;
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  /// Copies a contiguous tensor of as many bytes, as it is when all that its device was given
  /// before is done. Both must live until wait(). Throws Io.
  void start(std::span<std::byte> to, const at::Tensor& from);
  /// Until everything is there. Throws Io.
  void wait();

 private:
  std::map<int, void*> streams_;  ///< by device: cudaStream_t
};

}  // namespace unishard::trainer::detail
