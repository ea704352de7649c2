#pragma once
// What precedes the tensors of a GGUF file, versions 2 and 3, little-endian:
//    "GGUF" | u32 version | u64 tensors | u64 keys | keys and values | names, sizes, types, offsets
//    | padding to the alignment | tensors, each padded to it
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
// Everything is checked before memory is allocated for it.
#include "unishard/converters/loss.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::gguf {

inline constexpr std::string_view kMagic = "GGUF";
inline constexpr std::string_view kArchitectureKey = "general.architecture";
inline constexpr std::string_view kFileTypeKey = "general.file_type";

struct TensorEntry {
  std::string name;
  DType dtype = DType::Float32;
  Shape shape;               ///< row-major, the reverse of the order in the file
  std::uint64_t offset = 0;  ///< in the file
};

struct Header {
  /// The record kGgufMetadata: {key: [type, value]}, where type is a name of types.hpp. A value
  /// that is an array has elements of that type. Without the keys that say where things lie in this
  /// file.
  Json metadata = Json::object();
  std::optional<std::string> catalog_text;  ///< the embedded catalog
  std::vector<TensorEntry> tensors;         ///< in the order of the file
  Losses losses = {};                       ///< what is in the file and not in this value
};

/// Throws: Corrupt, naming file and byte; Unsupported for quantized tensors, naming the first, for
/// big-endian files and other versions; MemoryLimit.
Header read_header(const File& file);

/// A header that is being written.
struct Draft {
  std::string bytes;               ///< everything before the first tensor, padded
  std::uint64_t file_bytes = 0;    ///< of the whole file
  std::vector<std::string> notes;  ///< metadata that cannot be written
};
/// Encodes `header` and sets the offsets of its tensors.
/// Throws: Unsupported, naming the tensor, for a type or a number of dimensions that GGUF does not
/// have.
Draft encode_header(Header& header);

}  // namespace unishard::converters::gguf
