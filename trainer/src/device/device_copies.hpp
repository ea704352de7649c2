#pragma once
// Copies tensors in a device's memory to host memory on a separate
// stream, in parallel with computation, into pinned memory that the device can write to directly.
// cuda_copies.cpp implements it with the CUDA toolkit, no_cuda_copies.cpp without.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
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

/// Copies in progress; the destructor waits for them. Not thread-safe.
class DeviceCopies {
 public:
  DeviceCopies() = default;
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  /// Starts to copy a contiguous tensor of to.size() bytes, in its state after all work that its
  /// device was given before the first of its copies was started.
  /// Lifetime: `to` and `from` must live until wait() returns.
  /// Throws: Io.
  void start(std::span<std::byte> to, const at::Tensor& from);
  /// Waits for all copies.
  /// Throws: Io.
  void wait();

 private:
  std::map<int, void*> streams_;  ///< cudaStream_t by device
};

}  // namespace unishard::trainer::detail
