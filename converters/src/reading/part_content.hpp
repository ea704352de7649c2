#pragma once
// What the content of a file says about other files that belong to it.
#include "containers/pickle.hpp"

#include <optional>
#include <string>

namespace unishard::converters {

/// Returns what a torch.save file is a part of, as the arguments of the training in it say (`args`
/// of Megatron-LM, `hyper_parameters` of NeMo): "part of a parallel model: it was
/// saved with tensor_model_parallel_size 2". Returns nullopt where nothing says so.
std::optional<std::string> describe_part(torch::Value root);

}  // namespace unishard::converters
