#pragma once
// The global gradient norm, with the same bits on every world size and stage.
#include "engine/flat_unit.hpp"

#include <span>

namespace unishard::trainer::detail {

/// Collective. Squares are summed per block of the flat vectors, blocks in their order, units in
/// theirs.
double gradient_norm(std::span<FlatUnit* const> units, Communicator& communicator);

}  // namespace unishard::trainer::detail
