#pragma once
// Tells the tensors of a model from the states of its optimizer.
// Thread safety: a pure function.
#include "unishard/format/tensor_info.hpp"

namespace unishard::converters {

/// Returns whether the tensor is a parameter, in whatever form, or a buffer.
inline bool is_of_model(const TensorInfo& tensor) {
  return tensor.state == state::kFp32 || tensor.state == state::kWeights ||
         tensor.state == state::kBuffer;
}

}  // namespace unishard::converters
