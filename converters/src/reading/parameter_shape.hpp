#pragma once
// The shape of a parameter of which only the optimizer's states are known.
// Thread safety: a pure function.
#include "unishard/format/tensor_info.hpp"

#include <map>
#include <string>

namespace unishard::converters {

/// Returns the shape of the parameter that has states of these shapes, by name. Factored second
/// moments (Adafactor) are reductions of it: torch keeps the reduced dimensions, Hugging Face drops
/// them. bitsandbytes has tables beside its moments (state1).
/// Pre: `states` is not empty.
Shape parameter_shape(const std::map<std::string, Shape>& states);

}  // namespace unishard::converters
