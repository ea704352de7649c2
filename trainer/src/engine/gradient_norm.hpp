#pragma once
#include "unishard/trainer/communicator.hpp"

#include "state/model_state.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

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

/// Returns the values of gradient_squares(), followed by zeros: as many on every rank.
std::vector<double> equally_many(const ModelState& model, std::span<const double> own_sums,
                                 std::uint32_t ranks);
/// Returns the norm from the results of equally_many() of all ranks, in the order of the ranks.
double norm_of(const ModelState& model, std::span<const double> all_sums, std::uint32_t ranks);

}  // namespace unishard::trainer::detail
