#pragma once
// Random numbers on the device: a CPU generator that is the device's, so the draws are the CPU's.
// LibTorch 1.13 knows no such generator; there the device draws from the CPU's default one.
#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

namespace unishard::test::guarded {

at::Generator new_generator(c10::DeviceIndex device);
const at::Generator& default_generator(c10::DeviceIndex device);

/// Returns what the CPU's kernel gets for an argument: the generator in it, or the default one.
c10::IValue generator_on_host(const c10::IValue& argument, c10::DeviceIndex device);

}  // namespace unishard::test::guarded
