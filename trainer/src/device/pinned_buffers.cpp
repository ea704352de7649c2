#include "device/pinned_buffers.hpp"

namespace unishard::trainer::detail {

PinnedBuffers::PinnedBuffers(c10::Device device, std::size_t count) {
  if (device.is_cpu()) return;
  memory_ = HugeBuffer(count * kBytes);
  pinned_.emplace(memory_.bytes(), device);
  for (std::size_t i = 0; i < count; ++i) {
    buffers_.emplace_back().memory = memory_.bytes().subspan(i * kBytes, kBytes);
    free_.push_back(&buffers_.back());
  }
}

PinnedBuffers::Loan PinnedBuffers::lend() {
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [this] { return !free_.empty(); });
  Buffer* const buffer = free_.back();
  free_.pop_back();
  return {*this, *buffer};
}

void PinnedBuffers::give_back(Buffer& buffer) {
  const std::lock_guard lock(mutex_);
  free_.push_back(&buffer);
  returned_.notify_one();
}

std::span<const std::byte> PinnedBuffers::Loan::copy(const at::Tensor& from) {
  const std::span<std::byte> to = memory(from.nbytes());
  buffer_.copies.start(to, from);
  buffer_.copies.wait();
  return to;
}

void PinnedBuffers::Loan::send(const at::Tensor& to) {
  send_behind(to, memory(to.nbytes()));
  current_stream(to.device()).synchronize();
}

}  // namespace unishard::trainer::detail
