#include "unishard/trainer/batch_copies.hpp"

#include "unishard/format/huge_buffer.hpp"

#include "device/device_copies.hpp"
#include "device/pinned_memory.hpp"
#include "device/tensor_bytes.hpp"

#include <ATen/ops/empty_like.h>

#include <optional>
#include <utility>

namespace unishard::trainer {

/// A buffer, and the copy that reads it.
class BatchCopies::Slot {
 public:
  at::Tensor send(const at::Tensor& host, at::Device device) {
    copies_.wait();
    if (memory_.bytes().size() < host.nbytes()) grow(host.nbytes(), device);
    const std::span<std::byte> bytes = memory_.bytes().first(host.nbytes());
    detail::copy_to(bytes, host);
    at::Tensor copy = at::empty_like(host, host.options().device(device));
    copies_.start(copy, bytes);
    copies_.make_current_stream_wait(device);
    return copy;
  }

 private:
  void grow(std::size_t bytes, at::Device device) {
    pinned_.reset();
    memory_ = HugeBuffer(bytes);
    pinned_.emplace(memory_.bytes(), device);
  }

  HugeBuffer memory_;
  std::optional<detail::PinnedMemory> pinned_;
  detail::DeviceCopies copies_;  ///< last: its destructor waits
};

BatchCopies::BatchCopies(at::Device device)
    : device_(device), next_(std::make_unique<Slot>()), last_(std::make_unique<Slot>()) {}

BatchCopies::~BatchCopies() = default;

at::Tensor BatchCopies::send(const at::Tensor& host) {
  if (device_.is_cpu()) return host;
  std::swap(next_, last_);
  return last_->send(host, device_);
}

}  // namespace unishard::trainer
