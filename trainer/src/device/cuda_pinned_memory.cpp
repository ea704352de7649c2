// The project compiles and links this file on machines without a device; it has never run on one.
#include "device/pinned_memory.hpp"

#include <cuda_runtime_api.h>

namespace unishard::trainer::detail {

PinnedMemory::PinnedMemory(std::span<std::byte> memory) {
  if (cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault) == cudaSuccess) {
    pinned_ = memory.data();
  } else {
    cudaGetLastError();  // clears the error, which the next call would report
  }
}

PinnedMemory::~PinnedMemory() {
  if (pinned_ != nullptr) cudaHostUnregister(pinned_);
}

}  // namespace unishard::trainer::detail
