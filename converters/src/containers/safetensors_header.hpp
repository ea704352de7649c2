#pragma once
// The header of one .safetensors file: values, their strict decoding and their encoding. The layout
// is
//   u64 length (little-endian) | JSON object, padded with blanks to a multiple of 8 | tensor bytes
// Everything is checked before memory is taken for it; nothing of a file may be unaccounted for.
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::safetensors {

inline constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  ///< as the reference implementation

using Metadata = std::vector<std::pair<std::string, std::string>>;

struct HeaderEntry {
  std::string name;
  DType dtype = DType::Float32;
  Shape shape;
  std::uint64_t begin = 0;  ///< relative to Header::data_offset
  std::uint64_t end = 0;
};

struct Header {
  std::uint64_t data_offset = 0;     ///< of the first tensor byte in the file
  std::vector<HeaderEntry> entries;  ///< by (begin, end, name)
  Metadata metadata;
  std::vector<std::string> notes;  ///< unusual but readable
};

/// Throws Corrupt naming the file and what is wrong, Unsupported for a dtype that UniShard cannot
/// hold.
Header read_header(const File& file);

/// Gives `entries` their offsets in the order that the reference implementation writes (wide types
/// first, then by name), sorts them so, and returns the bytes before the first tensor.
/// Throws Unsupported for a dtype that safetensors cannot hold.
std::string encode_header(std::vector<HeaderEntry>& entries, const Metadata& metadata);

}  // namespace unishard::converters::safetensors
