#pragma once
// A whole tensor through one buffer, from its first element to its last.
#include "unishard/converters/source.hpp"

#include <algorithm>
#include <cstdint>
#include <span>

namespace unishard::tools {

/// Calls use(bytes) for consecutive blocks of `tensor`, as many elements as `buffer` holds at a
/// time. Returns the bytes read.
template <class Use>
std::uint64_t read_blocks(const converters::Source& source, std::size_t tensor,
                          std::span<std::byte> buffer, Use&& use) {
  const TensorInfo& info = source.catalog().tensors[tensor];
  const std::uint64_t width = size_of(info.dtype), elements = info.elements();
  const std::uint64_t step = buffer.size() / width;
  for (std::uint64_t begin = 0; begin < elements; begin += step) {
    const ElementRange range{begin, std::min(begin + step, elements)};
    const auto bytes = buffer.first(range.size() * width);
    source.read(tensor, range, bytes);
    use(bytes);
  }
  return elements * width;
}

}  // namespace unishard::tools
