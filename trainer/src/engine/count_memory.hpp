#pragma once
// Counts the bytes of a model's training state on this rank.
#include "unishard/trainer/engine.hpp"

#include "state/model_state.hpp"

namespace unishard::trainer::detail {

/// Returns the report without the memory of reductions and saves, which the model does not own.
MemoryReport count_memory(const ModelState& model);

}  // namespace unishard::trainer::detail
