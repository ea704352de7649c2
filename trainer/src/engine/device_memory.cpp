#include "engine/device_memory.hpp"

#include <torch/version.h>

#define UNISHARD_DEVICES_COUNT_MEMORY \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9))
#if UNISHARD_DEVICES_COUNT_MEMORY
#include <c10/core/CachingDeviceAllocator.h>
#endif

namespace unishard::trainer::detail {

#if UNISHARD_DEVICES_COUNT_MEMORY
namespace {

/// Returns null where the device has an allocator of another kind.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

}  // namespace

std::optional<DeviceMemory> device_memory(c10::Device device) {
  c10::DeviceAllocator* const allocator = allocator_of(device);
  if (allocator == nullptr) return std::nullopt;
  const auto stats = allocator->getDeviceStats(device.index());
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto& allocated = stats.allocated_bytes[all];
  const auto& reserved = stats.reserved_bytes[all];
  return DeviceMemory{allocated.current, allocated.peak, reserved.current, reserved.peak};
}

void reset_device_memory_peaks(c10::Device device) {
  if (c10::DeviceAllocator* const allocator = allocator_of(device))
    allocator->resetPeakStats(device.index());
}
#else
std::optional<DeviceMemory> device_memory(c10::Device /*device*/) { return std::nullopt; }
void reset_device_memory_peaks(c10::Device /*device*/) {}
#endif

}  // namespace unishard::trainer::detail
