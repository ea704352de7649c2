#include "formats/dcp/view_parts.hpp"

#include <cstddef>

namespace unishard::converters::dcp {

torch::TensorView box_of(const torch::TensorView& tensor, const Box& box) {
  torch::TensorView view = tensor;
  for (std::size_t d = 0; d < box.sizes.size(); ++d)
    view.offset += box.offsets[d] * tensor.strides[d];
  view.shape = box.sizes;
  return view;
}

torch::TensorView slice_of(const torch::TensorView& vector, std::uint64_t first,
                           const Shape& sizes) {
  torch::TensorView view = vector;
  const std::uint64_t stride = vector.strides[0];
  view.offset += first * stride;
  view.shape = sizes;
  view.strides.assign(sizes.size(), stride);
  for (std::size_t d = sizes.size(); d-- > 1;) view.strides[d - 1] = view.strides[d] * sizes[d];
  return view;
}

}  // namespace unishard::converters::dcp
