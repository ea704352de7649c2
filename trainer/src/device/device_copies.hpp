#pragma once
// Copies tensors in a device's memory to host memory on a separate stream, in parallel with
// computation, into pinned memory that the device can write to directly.
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <map>
#include <span>

namespace unishard::trainer::detail {

/// Gives the current stream of `from`'s device a copy of a contiguous tensor of to.size() bytes.
/// Lifetime: `to` and `from` must live until the stream has done it.
void copy_behind(std::span<std::byte> to, const at::Tensor& from);

/// Returns the current stream of `device`. Pre: a device that is not the CPU.
c10::Stream current_stream(at::Device device);

/// Copies in progress; the destructor waits for them. Not thread-safe.
class DeviceCopies {
 public:
  DeviceCopies() = default;
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  /// Starts to copy a contiguous tensor of to.size() bytes, in its state after all work that the
  /// current stream of its device has been given.
  /// Lifetime: `to` and `from` must live until wait() returns.
  void start(std::span<std::byte> to, const at::Tensor& from);
  /// Waits for all copies.
  void wait();

 private:
  std::map<c10::DeviceIndex, c10::Stream> streams_;
};

}  // namespace unishard::trainer::detail
