#pragma once
// The HDF5 container of a shard: creates all data sets and returns where their bytes go, for
// contiguous data sets at once and for compressed or shared chunks one by one. All HDF5 calls that
// write are here; no payload passes through HDF5.
#include "unishard/format/dtype.hpp"
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace unishard::detail {

inline constexpr std::uint64_t kUserBlockBytes = 4096;

struct ContainerDataSet {
  std::string name;  ///< name below /data and /chunks
  std::string state;
  DType dtype = DType::Float32;
  std::uint64_t elements = 0;         ///< elements without padding
  std::uint64_t padded_elements = 0;  ///< elements as allocated; > 0
  std::uint64_t chunks = 0;           ///< rows of the chunk table
  std::uint64_t chunk_elements = 0;   ///< elements of each chunk; 0: contiguous
};

/// Consecutive chunks that lie in one file.
struct ChunkRun {
  std::uint64_t first = 0, count = 0;
  std::string file;   ///< a name in the container's folder; "." is the container itself
  std::string group;  ///< group in `file` that holds the data set of the same name
};

struct ContainerSpec {
  std::string save_id;
  std::uint32_t rank = 0, world_size = 1;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t index_rows = 0, names_bytes = 0, boxes_bytes = 0;
  /// Own chunks are below /fresh, and map() creates the data sets below /data.
  bool shares = false;
  std::vector<ContainerDataSet> data_sets;
};

/// Absolute file offsets in bytes; 0 for an empty table and for a compressed data set.
struct ContainerOffsets {
  std::uint64_t index = 0, names = 0, boxes = 0;
  std::vector<std::uint64_t> data, chunks;
};

/// One container being written. Thread-safe.
/// Throws: every function throws Io with HDF5's explanation, or what `file` threw.
class Container {
 public:
  /// Creates the container in `file`.
  /// Pre: `file` is new and empty.
  /// Lifetime: `file` must outlive this object.
  Container(File& file, const ContainerSpec& spec);
  ~Container();
  Container(const Container&) = delete;
  Container& operator=(const Container&) = delete;

  const ContainerOffsets& offsets() const;
  /// Returns the bytes that HDF5 has allocated so far; after close(), the size of the file.
  std::uint64_t end() const;
  /// Allocates `bytes` bytes for a chunk of a compressed data set and returns their file offset.
  /// Pre: called once for each chunk.
  std::uint64_t place_chunk(std::size_t data_set, std::uint64_t chunk, std::uint64_t bytes,
                            std::uint32_t filter_mask);
  /// Creates a shared data set that consists of `runs`.
  /// Pre: `runs` are consecutive and cover the data set; called once for each data set.
  void map(std::size_t data_set, const std::vector<ChunkRun>& runs);
  /// Writes what HDF5 still holds. Afterwards only end() and offsets() may be called.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace unishard::detail
