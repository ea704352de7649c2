#pragma once
#include "unishard/format/json.hpp"

#include "workflows/estimate.hpp"

#include <string>

namespace unishard::cli {

/// Returns the tables that DeepSpeed's estimate_zero2_model_states_mem_needs_all_cold() and
/// estimate_zero3_...() print, with the same numbers, and what follows from them.
std::string estimate_text(const tools::Estimate& estimate);
Json estimate_json(const tools::Estimate& estimate);

}  // namespace unishard::cli
