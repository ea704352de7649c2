// Replaces cuda_copies.cpp when configure found no CUDA toolkit: LibTorch copies.
#include "device/device_copies.hpp"
#include "device/tensor_bytes.hpp"

namespace unishard::trainer::detail {

PinnedMemory::PinnedMemory(std::span<std::byte>) {}
PinnedMemory::~PinnedMemory() = default;
DeviceCopies::~DeviceCopies() = default;

void DeviceCopies::start(std::span<std::byte> to, const at::Tensor& from) { copy_to(to, from); }

void DeviceCopies::wait() {}

}  // namespace unishard::trainer::detail
