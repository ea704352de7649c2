#include "unishard/format/tensor_info.hpp"

#include "unishard/format/checked.hpp"

#include <algorithm>

namespace unishard {

std::uint64_t element_count(const Shape& shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t dimension : shape)
    count = checked_mul(count, dimension, "a tensor's element count");
  return count;
}

ElementRange intersect(const ElementRange& a, const ElementRange& b) {
  const std::uint64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

std::uint64_t TensorInfo::bytes() const {
  return checked_mul(elements(), size_of(dtype), "a tensor's byte count");
}

std::string TensorInfo::label() const { return fqn + " [" + state + "]"; }

}  // namespace unishard
