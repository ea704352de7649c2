#pragma once
#include "state/flat_unit.hpp"

#include <span>

namespace unishard::trainer::detail {

/// Returns the global gradient norm, with the same bits on every world size and stage: squares are
/// summed per block of the flat vectors, blocks and units in order. Collective.
double gradient_norm(std::span<FlatUnit* const> units, Communicator& communicator);

}  // namespace unishard::trainer::detail
