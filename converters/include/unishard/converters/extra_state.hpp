#pragma once
// Tensors of neither the model nor the optimizer: a second model, an average of the weights, values
// of the user's.
#include "unishard/format/json.hpp"
#include "unishard/format/tensor_info.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// Their state. The client state represents one by {"$tensor": fqn}.
inline constexpr std::string_view kExtraState = "extra";

/// A small tensor that a client state holds by itself, with its bytes.
struct ClientTensor {
  DType dtype = DType::Float32;
  Shape shape;
  std::vector<std::byte> bytes;
};

/// Returns the tensor that `value` is; nullopt for other values, and when the bytes do not make
/// such a tensor.
std::optional<ClientTensor> client_tensor_in(const Json& value);

}  // namespace unishard::converters
