#pragma once
// Gathers the gradients of a unit on a CUDA device, with the bits of the host. cuda_gradients.cu
// implements it where configure found a CUDA compiler, no_cuda_gradients.cpp elsewhere.
#include "unishard/trainer/gather.hpp"

#include "runtime/gradient_launch.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace unishard::trainer::detail {

enum class GradientType : std::uint8_t { Float32, Bfloat16, Float16 };

/// The array that gradients are gathered in.
struct GradientTarget {
  void* values = nullptr;
  std::size_t elements = 0;
  Gather how = Gather::Copy;
};

/// Enqueues Runtime::gather_gradients() on `stream`, a cudaStream_t of the current device, and
/// returns at once.
/// Lifetime: the arrays must live until the stream has passed it.
/// Throws: Unsupported in a build without the kernels; Io when a launch fails.
void gather_gradients_on_cuda(std::span<const GradientSource> sources, GradientType type,
                              const GradientTarget& target, void* stream);

}  // namespace unishard::trainer::detail
