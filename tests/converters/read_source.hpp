#pragma once
// Reads whole tensors, for the tests of all formats.
#include "unishard/converters/source.hpp"

#include <vector>

namespace unishard::converters {

/// Returns all bytes of a tensor.
inline std::vector<std::byte> read_all(const Source& source, std::size_t tensor) {
  const TensorInfo& info = source.catalog().tensors[tensor];
  std::vector<std::byte> bytes(info.bytes());
  source.read(tensor, {0, info.elements()}, bytes);
  return bytes;
}

/// Reads every tensor of a source.
inline void read_all_tensors(const Source& source) {
  for (std::size_t i = 0; i < source.catalog().tensors.size(); ++i) read_all(source, i);
}

}  // namespace unishard::converters
