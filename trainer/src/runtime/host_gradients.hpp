#pragma once
#include "unishard/trainer/runtime.hpp"

#include <span>

namespace unishard::trainer::detail {

/// Performs Runtime::gather_gradients() in host memory, from the calling thread.
void gather_gradients_on_host(std::span<const GradientPart> parts, const at::Tensor& to,
                              Gather how);

}  // namespace unishard::trainer::detail
