#pragma once
// Runs a rule on a CUDA device, with the bits of the host. cuda_update.cu implements it where
// configure found a CUDA compiler, no_cuda_update.cpp elsewhere.
#include "optimizer/update_arrays.hpp"

namespace unishard::trainer::detail {

/// Returns true where this build has the kernels. It does not say that there is a device.
bool has_cuda_update();

/// Enqueues the update of all segments on `stream`, a cudaStream_t of the current device, and
/// returns at once. Elements of no segment stay as they are, rounded ones too.
/// Pre: the arrays lie in memory of that device; `rounded` has as many elements. Segments do not
/// overlap.
/// Lifetime: the arrays must live until the stream has passed the update.
/// Throws: Unsupported in a build without the kernels; Io when a launch fails.
void update_on_cuda(std::span<const RuleSegment> segments, const UpdateArrays& arrays,
                    RoundedArray rounded, void* stream);

}  // namespace unishard::trainer::detail
