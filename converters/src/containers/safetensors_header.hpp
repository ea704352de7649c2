#pragma once
// The header of one .safetensors file: values, strict decoding and encoding. The layout is
//    u64 length (little-endian) | JSON object, padded with blanks to a multiple of 8 | tensor bytes
// Everything is checked before memory is allocated for it, and every byte of the file must be
// accounted for.
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include "containers/sub_byte_types.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::safetensors {

/// Limit of the reference implementation.
inline constexpr std::uint64_t kHeaderBytesMax = 100'000'000;

using Metadata = std::vector<std::pair<std::string, std::string>>;

struct HeaderEntry {
  std::string name;
  DType dtype = DType::Float32;
  Shape shape;
  std::uint64_t begin = 0;  ///< relative to Header::data_offset
  std::uint64_t end = 0;
  /// For elements below a byte: what the file says. `dtype` and `shape` are then those of the
  /// packed bytes.
  std::optional<SubByteType> sub_byte = {};
};

struct Header {
  std::uint64_t data_offset = 0;     ///< offset of the first tensor byte in the file
  std::vector<HeaderEntry> entries;  ///< sorted by (begin, end, name)
  Metadata metadata;
  std::vector<std::string> notes;  ///< unusual but readable things
};

/// Reads and checks the header of `file`.
/// Throws: Corrupt, naming the file and the defect; Unsupported for a dtype that UniShard cannot
/// hold.
Header read_header(const File& file);

/// Assigns offsets to `entries` in the order of the reference implementation (wide types first,
/// then by name), sorts them in that order, and returns the bytes before the first tensor.
/// Throws: Unsupported for a dtype that safetensors cannot hold.
std::string encode_header(std::vector<HeaderEntry>& entries, const Metadata& metadata);

}  // namespace unishard::converters::safetensors
