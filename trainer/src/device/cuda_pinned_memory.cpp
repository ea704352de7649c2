// The project compiles and links this file on machines without a device; it has never run on one.
#include "device/pinned_memory.hpp"

#include <c10/core/DeviceGuard.h>
#include <cuda_runtime_api.h>

namespace unishard::trainer::detail {

PinnedMemory::PinnedMemory(std::span<std::byte> memory, c10::Device device) : device_(device) {
  const c10::DeviceGuard current(device_);
  if (cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault) == cudaSuccess) {
    pinned_ = memory.data();
  } else {
    cudaGetLastError();  // clears the error, which the next call would report
  }
}

PinnedMemory::~PinnedMemory() {
  if (pinned_ == nullptr) return;
  const c10::DeviceGuard current(device_);
  cudaHostUnregister(pinned_);
}

}  // namespace unishard::trainer::detail
