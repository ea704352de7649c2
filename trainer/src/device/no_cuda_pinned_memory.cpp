// Replaces cuda_pinned_memory.cpp when configure found no CUDA toolkit.
#include "device/pinned_memory.hpp"

namespace unishard::trainer::detail {

PinnedMemory::PinnedMemory(std::span<std::byte>, c10::Device device)
    : device_(device), problem_("this build has no CUDA toolkit") {}
PinnedMemory::~PinnedMemory() = default;

}  // namespace unishard::trainer::detail
