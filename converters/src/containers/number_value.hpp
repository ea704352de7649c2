#pragma once
// Numbers in pickles, which are Python's own or tensors of one element.
#include "containers/torch_file.hpp"

#include <optional>

namespace unishard::converters::torch {

/// Returns the number in a Python number or a tensor of one element; nullopt for other values.
std::optional<double> number_of(const TorchFile& file, Value value);

}  // namespace unishard::converters::torch
