#include "device/pinned_memory.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

namespace unishard::trainer::detail {

PinnedMemory::PinnedMemory(std::span<std::byte> memory, c10::Device device) : device_(device) {
  const c10::DeviceGuard current(device_);
  const cudaError_t result =
      cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault);
  if (result == cudaSuccess) {
    pinned_ = memory.data();
    return;
  }
  problem_ = std::string("cudaHostRegister: ") + cudaGetErrorString(result);
  cudaGetLastError();  // clears the error, which the next call would report
  TORCH_WARN_ONCE(
      "Copies between ", device_, " and ", memory.size(),
      " bytes of host memory will be slow, because the memory could not be pinned: ", problem_);
}

PinnedMemory::~PinnedMemory() {
  if (pinned_ == nullptr) return;
  const c10::DeviceGuard current(device_);
  cudaHostUnregister(pinned_);
}

}  // namespace unishard::trainer::detail
