#pragma once
// Describes one data set of a foreign file: its content and how it can be read.
// Pre: the caller holds the Hdf5Lock.
#include "unishard/converters/loss.hpp"
#include "unishard/format/hdf5_library.hpp"
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace unishard::converters::hdf5 {

/// Upper bound on a chunk. Chunks are read and unpacked whole.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{256} << 20;

struct StoredTensor {
  DType dtype = DType::Float32;
  Shape shape;
  /// File offset of the little-endian bytes; nullopt when HDF5 has to convert, unpack or fill them.
  std::optional<std::uint64_t> offset;
  /// Bytes of chunks to cache while neighbouring elements are read.
  std::uint64_t cache_bytes = 0;
  /// Every chunk passes the filter fletcher32.
  bool has_checksum = false;  ///< of every chunk: it passes the filter fletcher32
};

/// A data set that is not read.
struct Unreadable {
  Role role = Role::ClientValue;  ///< Weight: it holds numbers
  std::string why;                ///< "strings"
};

/// Returns the tensor in the open data set, or why it is none. Opens no other file and loads no
/// plug-in.
/// Throws: Corrupt or Unsupported, naming `where`.
std::variant<StoredTensor, Unreadable> describe_data_set(hid_t data_set, std::uint64_t file_bytes,
                                                         const std::string& where);

}  // namespace unishard::converters::hdf5
