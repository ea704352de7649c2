#include "random_parts.hpp"

#include <algorithm>
#include <utility>

namespace unishard::test {
namespace {

std::uint64_t below(std::mt19937_64& random, std::uint64_t end) { return random() % end; }

/// Halves a random one of `boxes` along a random axis, where it has more than one index.
void cut_one(std::mt19937_64& random, std::vector<Box>& boxes) {
  Box& left = boxes[below(random, boxes.size())];
  const std::size_t axis = below(random, left.sizes.size());
  if (left.sizes[axis] < 2) return;
  Box right = left;
  const std::uint64_t size = 1 + below(random, left.sizes[axis] - 1);
  left.sizes[axis] = size;
  right.offsets[axis] += size;
  right.sizes[axis] -= size;
  boxes.push_back(std::move(right));
}

}  // namespace

TensorInfo weight(std::string fqn, DType dtype, Shape shape) {
  TensorInfo tensor;
  tensor.fqn = std::move(fqn);
  tensor.state = state::kWeights;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  return tensor;
}

Shape random_shape(std::mt19937_64& random, std::size_t axes_max, std::uint64_t elements_max) {
  Shape shape(1 + below(random, axes_max));
  std::uint64_t left = elements_max;
  for (std::uint64_t& dimension : shape) {
    dimension = 1 + below(random, std::min<std::uint64_t>(left, 9));
    left /= dimension;
  }
  return shape;
}

std::vector<Fragment> random_parts(std::mt19937_64& random, std::uint32_t number,
                                   const TensorInfo& tensor, std::size_t cuts) {
  const Shape& shape = tensor.shape;
  const std::uint64_t front = below(random, shape.front() + 1);  // indices of the first axis
  const std::uint64_t front_elements = tensor.elements() / shape.front() * front;
  std::vector<Fragment> parts;
  for (std::uint64_t at = 0; at < front_elements;) {
    const std::uint64_t end = at + 1 + below(random, front_elements - at);
    parts.push_back({number, {at, end}});
    at = end;
  }
  if (front == shape.front()) return parts;
  std::vector<Box> boxes = {{Shape(shape.size()), shape}};
  boxes[0].offsets[0] = front;
  boxes[0].sizes[0] -= front;
  for (std::size_t i = 0; i < cuts; ++i) cut_one(random, boxes);
  for (Box& box : boxes) parts.push_back(Fragment::of_box(number, tensor, std::move(box)));
  std::ranges::sort(parts, {}, &Fragment::range);
  return parts;
}

}  // namespace unishard::test
