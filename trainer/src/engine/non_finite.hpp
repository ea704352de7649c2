#pragma once
// Finds where a step became NaN or infinite.
#include "state/model_state.hpp"

#include <span>
#include <string>

namespace unishard::trainer::detail {

/// Says in a sentence which losses and gradients are not finite: "the loss of micro-batch 2 (rank
/// 0) is nan; the gradient of h.1.fc.weight (unit h.1) is not finite on rank 1". A sharded gradient
/// is on the rank that owns its elements. The same text on every rank. Collective.
/// `losses` holds the losses of all micro-batches in their order.
std::string describe_non_finite(const ModelState& model, std::span<const double> losses,
                                Communicator& communicator);

}  // namespace unishard::trainer::detail
