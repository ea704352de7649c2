#pragma once
// One data set of a file that anybody may have written: what it holds, and how it can be read.
// Call under Hdf5Lock.
#include "unishard/format/hdf5_library.hpp"
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace unishard::converters::hdf5 {

/// Chunks are read and unpacked whole, so larger ones are refused.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{256} << 20;

struct StoredTensor {
  DType dtype = DType::Float32;
  Shape shape;
  /// Where its little-endian bytes lie back to back; nullopt where HDF5 has to convert, unpack or
  /// fill.
  std::optional<std::uint64_t> offset;
  std::uint64_t cache_bytes = 0;  ///< chunks to keep while neighbouring elements are read
  bool has_checksum = false;      ///< of every chunk: it passes the filter fletcher32
};

/// What the open data set is, or why it is no tensor ("strings"). Throws Corrupt or Unsupported
/// naming `where`. Opens no other file and loads no plug-in.
std::variant<StoredTensor, std::string> describe_data_set(hid_t data_set, std::uint64_t file_bytes,
                                                          const std::string& where);

}  // namespace unishard::converters::hdf5
