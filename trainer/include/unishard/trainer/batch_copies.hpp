#pragma once
// The way of a micro-batch's input to a device.
#include <ATen/core/Tensor.h>

#include <memory>

namespace unishard::trainer {

namespace detail {
class PinnedTurns;
}

/// Gives a device what the host makes for each micro-batch. Two buffers of pinned memory take
/// turns, so that the host goes on while the device computes on the micro-batch before. Thread
/// safety: not thread-safe.
class BatchCopies {
 public:
  explicit BatchCopies(at::Device device);
  /// Waits for the copies that are under way.
  ~BatchCopies();
  BatchCopies(const BatchCopies&) = delete;
  BatchCopies& operator=(const BatchCopies&) = delete;

  /// Returns a copy of a contiguous tensor of the host for work on the device's current stream; the
  /// tensor itself where the device is the host. `host` may be changed at once. Blocks until the
  /// device has the tensor of the call before the last one.
  at::Tensor send(const at::Tensor& host);

 private:
  at::Device device_;
  std::unique_ptr<detail::PinnedTurns> turns_;
};

}  // namespace unishard::trainer
