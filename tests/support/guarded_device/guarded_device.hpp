#pragma once
// Devices for tests: LibTorch's PrivateUse1 type with memory that the host may not touch, and with
// the CPU's kernels, so results have the CPU's bits. They find
// - access of the host to device memory,
// - operations on tensors of several devices, and on memory that was released,
// - work on memory that another stream uses, when no event orders the two ("guarded: RACE"),
// - memory that is freed while another stream may use it.
// Kernels are never late. The devices exist in the process that installed them, not in its
// children.
#include "guarded_device/fault.hpp"
#include "guarded_device/streams.hpp"

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace unishard::test::guarded {

/// Registers the devices with LibTorch. Later calls have no effect.
/// Pre: no backward pass was made in this process, because the first one counts the devices.
void install();

/// Pre: index < kDevices.
inline c10::Device device(int index) { return {kDeviceType, static_cast<c10::DeviceIndex>(index)}; }

/// Calls `kernel` with CPU tensors over the memory of device tensors, as a launch on the current
/// stream.
/// Throws: c10::Error for a race.
void launch(const char* name, const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes,
            const std::function<void(const std::vector<at::Tensor>& reads,
                                     const std::vector<at::Tensor>& writes)>& kernel);

}  // namespace unishard::test::guarded
