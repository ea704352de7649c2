#pragma once
// The arrays of an update in the memory of a runtime's device.
#include "unishard/trainer/runtime.hpp"

#include "optimizer/update_arrays.hpp"

namespace unishard::trainer::detail {

/// Lifetime: the arrays are valid as long as the tensors' memory.
/// Throws: Internal for a tensor that is not contiguous float32 on `device`.
UpdateArrays arrays_of(const UpdateTensors& tensors, at::Device device);

}  // namespace unishard::trainer::detail
