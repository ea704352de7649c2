#pragma once
// What LibTorch's allocator tells about the memory of a device.
// Thread safety: thread-safe functions.
#include "unishard/trainer/engine.hpp"

#include <c10/core/Device.h>

#include <optional>

namespace unishard::trainer::detail {

/// Returns what this process has of the device's memory. nullopt for the host, and where LibTorch's
/// allocator does not count (LibTorch before 2.9).
std::optional<DeviceMemory> device_memory(c10::Device device);

/// Makes the peaks what is allocated and reserved now.
void reset_device_memory_peaks(c10::Device device);

}  // namespace unishard::trainer::detail
