#pragma once
// The end of a step: new weights from the summed gradients, and their way to all ranks.
#include "unishard/trainer/runtime.hpp"

#include "engine/speculation.hpp"
#include "state/training_state.hpp"

namespace unishard::trainer::detail {

/// Updates every unit, with gradients without the loss scale and clipped by their norm, and shares
/// its weights while the next ones are updated. What `speculation`, which may be null, has updated
/// ahead stands if nothing is clipped; returns how many units those are. Collective below stage 3.
std::int64_t update_units(TrainingState& state, Runtime& runtime, double gradient_norm,
                          Speculation* speculation);

/// Updates every unit but those in `done`, which are updated already, and shares its weights.
/// Collective below stage 3.
void update_tiles(const TileUpdate& update, const UnitSet& done);

/// Gives the parameters what has changed, on all ranks. Collective below stage 3.
void publish_units(TrainingState& state, Runtime& runtime, Changed changed);

}  // namespace unishard::trainer::detail
