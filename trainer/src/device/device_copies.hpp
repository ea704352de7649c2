#pragma once
// Copies between tensors in a device's memory and pinned host memory, which the device can access
// directly, on a separate stream, in parallel with computation.
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <map>
#include <span>

namespace unishard::trainer::detail {

/// Gives the current stream of `from`'s device a copy of a contiguous tensor of to.size() bytes.
/// Lifetime: `to` and `from` must live until the stream has done it.
void copy_behind(std::span<std::byte> to, const at::Tensor& from);

/// Gives the current stream of `to`'s device a copy of to.nbytes() bytes into a contiguous tensor.
/// Lifetime: `to` and `from` must live until the stream has done it.
void send_behind(const at::Tensor& to, std::span<const std::byte> from);

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
  /// Starts to copy to.nbytes() bytes into a contiguous tensor, after all work that the current
  /// stream of its device has been given.
  /// Lifetime: as of the other start().
  void start(const at::Tensor& to, std::span<const std::byte> from);
  /// Makes what the current stream of `device` is given from now on wait for the copies.
  void make_current_stream_wait(at::Device device) const;
  /// Waits for all copies.
  void wait();

 private:
  c10::Stream stream_behind(at::Device device);

  std::map<c10::DeviceIndex, c10::Stream> streams_;
};

}  // namespace unishard::trainer::detail
