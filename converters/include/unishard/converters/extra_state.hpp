#pragma once
// Tensors of neither the model nor the optimizer: a second model, an average of the weights, values
// of the user's.
#include <string_view>

namespace unishard::converters {

/// Their state. The client state represents one by {"$tensor": fqn}.
inline constexpr std::string_view kExtraState = "extra";

}  // namespace unishard::converters
