#include "device/pinned_buffers.hpp"

namespace unishard::trainer::detail {

PinnedBuffers::PinnedBuffers(c10::Device device, std::size_t count) {
  if (device.is_cpu()) return;
  memory_ = HugeBuffer(count * kBytes);
  pinned_.emplace(memory_.bytes(), device);
  for (std::size_t i = 0; i < count; ++i)
    free_.push_back(memory_.bytes().subspan(i * kBytes, kBytes));
}

PinnedBuffers::Loan PinnedBuffers::lend() {
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [this] { return !free_.empty(); });
  const std::span<std::byte> bytes = free_.back();
  free_.pop_back();
  return {*this, bytes};
}

void PinnedBuffers::give_back(std::span<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  free_.push_back(bytes);
  returned_.notify_one();
}

}  // namespace unishard::trainer::detail
