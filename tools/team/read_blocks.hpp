#pragma once
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/catalog.hpp"

#include <algorithm>
#include <cstdint>
#include <span>

namespace unishard::tools {

/// Reads `range` of a tensor through one buffer: calls read(range, bytes) and then use(bytes) for
/// consecutive parts, each with as many elements of `width` bytes as fit into `buffer`. Reports
/// each part to the observer of `options`, which can stop the work.
template <class Read, class Use>
void read_blocks(ElementRange range, std::uint64_t width, std::span<std::byte> buffer,
                 const TransferOptions& options, const Read& read, const Use& use) {
  const std::uint64_t step = buffer.size() / width;
  for (std::uint64_t begin = range.begin; begin < range.end; begin += step) {
    const ElementRange block{begin, std::min(begin + step, range.end)};
    const auto bytes = buffer.first(block.size() * width);
    read(block, bytes);
    use(bytes);
    options.advance(bytes.size());
  }
}

}  // namespace unishard::tools
