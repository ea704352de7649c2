#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

namespace unishard::test::guarded {

/// Performs any operation by the CPU's kernel on the second mapping, so with the CPU's bits.
/// Throws: c10::Error for a race, for released memory, and for tensors of several devices.
void run_cpu_kernel(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

}  // namespace unishard::test::guarded
