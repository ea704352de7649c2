#pragma once
// NVIDIA's devices, as the kernel shows them: no driver library is needed to ask.
#include <cstdint>
#include <string>
#include <vector>

namespace unishard::tools {

/// Returns the numbers N of the device files /dev/nvidiaN, ascending: those that this process can
/// use.
std::vector<std::uint32_t> gpu_numbers();
/// Returns the models of the machine's GPUs, for example "NVIDIA H100 80GB HBM3", in the order of
/// their bus addresses. A container may show fewer device files.
std::vector<std::string> gpu_models();
/// Returns the version of the kernel's driver; empty when there is none.
std::string gpu_driver();

}  // namespace unishard::tools
