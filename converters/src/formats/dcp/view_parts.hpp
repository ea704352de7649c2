#pragma once
// Parts of the tensors that a rank's file holds, as views.
// Thread safety: pure functions.
#include "containers/boxes.hpp"
#include "containers/tensor_view.hpp"

#include <cstdint>

namespace unishard::converters::dcp {

/// Returns the elements of `box`. Pre: the box lies inside the tensor.
torch::TensorView box_of(const torch::TensorView& tensor, const Box& box);

/// Returns the elements of a vector from number `first` on as a row-major tensor of `sizes`.
/// Pre: the vector has that many.
torch::TensorView slice_of(const torch::TensorView& vector, std::uint64_t first,
                           const Shape& sizes);

}  // namespace unishard::converters::dcp
