#pragma once
// The squares of a unit's gradients, summed on a CUDA device with the bits of the host.
// cuda_square_sums.cu implements it where configure found a CUDA compiler, no_cuda_square_sums.cpp
// elsewhere.
#include <cstdint>
#include <span>

namespace unishard::trainer::detail {

/// Arrays in the memory of a device.
struct SquareSumArrays {
  const float* gradients = nullptr;  ///< of `blocks` * kShardBlock elements
  double* block_sums = nullptr;      ///< of `blocks` elements; overwritten
  double* sums = nullptr;            ///< the result: one for each group
  std::uint32_t blocks = 0;
};

/// Enqueues group_square_sums() on `stream`, a cudaStream_t of the current device, and returns at
/// once. One kernel reads the gradients, a second one adds up the sums of blocks.
/// Pre: at most 64 levels.
/// Lifetime: the arrays must live until the stream has passed it.
/// Throws: Unsupported in a build without the kernels; Io when a launch fails.
void sum_squares_on_cuda(const SquareSumArrays& arrays, std::span<const std::uint8_t> levels,
                         void* stream);

}  // namespace unishard::trainer::detail
