#pragma once
// Reads whole tensors, for the tests of all formats.
#include "unishard/converters/source.hpp"
#include "unishard/format/json.hpp"

#include <string>
#include <vector>

namespace unishard::converters {

/// Returns all bytes of a tensor.
inline std::vector<std::byte> read_all(const Source& source, std::size_t tensor) {
  const TensorInfo& info = source.catalog().tensors[tensor];
  std::vector<std::byte> bytes(info.bytes());
  source.read(tensor, {0, info.elements()}, bytes);
  return bytes;
}

inline std::string file_text(const Path& path) {
  return read_text(posix_storage(), path, 1u << 26);
}

inline Json read_json(const Path& path) { return parse_json(file_text(path), path.string()); }

}  // namespace unishard::converters
