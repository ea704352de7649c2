#pragma once
// The runtime of a device that LibTorch has: its streams and events through LibTorch's own device
// interface. The same code runs a CUDA device and the device of the tests.
#include "unishard/trainer/runtime.hpp"

#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <span>

namespace unishard::trainer::detail {

struct DeviceRuntimeOptions {
  /// Records what each stream does; null: nothing.
  Trace* trace = nullptr;
  /// Performs Runtime::update() on a stream of the device, without waiting for it.
  std::function<void(std::span<const UpdateSegment> segments, std::int64_t step,
                     float gradient_scale, const UpdateTensors& tensors, c10::Stream stream)>
      update;
  /// Performs Runtime::gather_gradients() on a stream of the device, without waiting for it.
  std::function<void(std::span<const GradientPart> parts, const at::Tensor& to, Gather how,
                     c10::Stream stream)>
      gather_gradients;
  /// Performs Runtime::sum_squares() on a stream of the device, without waiting for it.
  std::function<void(const at::Tensor& gradients, std::span<const std::uint8_t> levels,
                     const at::Tensor& sums, c10::Stream stream)>
      sum_squares;
};

/// Returns a runtime whose Compute is the default stream of `device`, and whose Communication is
/// one of LibTorch's pool.
/// Lifetime: `options.trace` must outlive it.
std::unique_ptr<Runtime> make_device_runtime(at::Device device, DeviceRuntimeOptions options);

}  // namespace unishard::trainer::detail
