#pragma once
// The arrays of an update in the memory of a runtime's device.
#include "unishard/trainer/runtime.hpp"

#include "optimizer/update_arrays.hpp"

#include <functional>
#include <span>
#include <vector>

namespace unishard::trainer::detail {

/// Returns the segments with the rules of one step.
std::vector<RuleSegment> rules_of(std::span<const UpdateSegment> segments, std::int64_t step,
                                  float gradient_scale);

/// Lifetime: the arrays are valid as long as the tensors' memory.
/// Throws: Internal for a tensor that is not contiguous float32 on `device`.
UpdateArrays arrays_of(const UpdateTensors& tensors, at::Device device);
/// Lifetime: as above. Throws: Internal for a tensor that is not contiguous, or of another type.
RoundedArray rounded_of(const UpdateTensors& tensors);

/// Performs an update in host memory, each segment by `update`.
void update_segments(std::span<const RuleSegment> segments, const UpdateTensors& tensors,
                     const std::function<void(const Rule&, const UpdateArrays&)>& update);

}  // namespace unishard::trainer::detail
