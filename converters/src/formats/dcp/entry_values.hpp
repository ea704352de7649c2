#pragma once
// Looks at the values of tensors while their keys are arranged.
#include "formats/dcp/state_dict.hpp"

#include <optional>

namespace unishard::converters::dcp {

/// Returns the value of a tensor of one element; nullopt for other tensors and types.
std::optional<double> scalar(const TensorEntry& tensor, const Items& items);

/// Compares the bytes of both tensors.
/// Pre: they have the same shape and type.
bool equal_bytes(const TensorEntry& a, const TensorEntry& b, const Items& items);

}  // namespace unishard::converters::dcp
