#pragma once
#include "unishard/trainer/communicator.hpp"

#include "state/model_state.hpp"

#include <ATen/core/Tensor.h>

#include <span>

namespace unishard::trainer::detail {

/// Returns the sums of the squared gradients that this rank holds: square_sums() of all units, in
/// order. Does not wait for the device.
/// Pre: Compute has been made to wait for the reduced gradients.
at::Tensor gradient_squares(const ModelState& model);

/// Returns the global gradient norm from the values of gradient_squares(), with the same bits on
/// every world size and stage: blocks are summed along a binary tree, units in order. Collective: a
/// rank sends one number for each of its nodes.
double gradient_norm(const ModelState& model, std::span<const double> own_sums,
                     Communicator& communicator);

}  // namespace unishard::trainer::detail
