#pragma once
#include "unishard/format/catalog.hpp"

#include <algorithm>
#include <cstdint>
#include <span>

namespace unishard::tools {

/// Reads `range` of a tensor through one buffer: calls read(range, bytes) and then use(bytes) for
/// consecutive parts, each with as many elements of `width` bytes as fit into `buffer`. Returns the
/// bytes read.
template <class Read, class Use>
std::uint64_t read_blocks(ElementRange range, std::uint64_t width, std::span<std::byte> buffer,
                          const Read& read, const Use& use) {
  const std::uint64_t step = buffer.size() / width;
  for (std::uint64_t begin = range.begin; begin < range.end; begin += step) {
    const ElementRange block{begin, std::min(begin + step, range.end)};
    const auto bytes = buffer.first(block.size() * width);
    read(block, bytes);
    use(bytes);
  }
  return range.size() * width;
}

}  // namespace unishard::tools
