#pragma once
// The HDF5 side of a shard: creates the container with all data sets and says where their bytes
// belong: contiguous ones at once, the chunks of compressed and shared ones when they come. The
// only place that calls HDF5 for writing; no payload passes through it.
#include "unishard/format/dtype.hpp"
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace unishard::detail {

inline constexpr std::uint64_t kUserBlockBytes = 4096;
inline constexpr std::size_t kIndexRowBytes = 96;

struct ContainerDataSet {
  std::string name;  ///< below /data and /chunks
  std::string state;
  DType dtype = DType::Float32;
  std::uint64_t elements = 0;         ///< real ones
  std::uint64_t padded_elements = 0;  ///< as allocated; > 0
  std::uint64_t chunks = 0;           ///< rows of its chunk table
  std::uint64_t chunk_elements = 0;   ///< of each chunk; 0: contiguous
};

/// Neighbouring chunks that lie in one file.
struct ChunkRun {
  std::uint64_t first = 0, count = 0;
  std::string file;   ///< a name in the container's folder; "." is the container itself
  std::string group;  ///< there, above the data set of the same name
};

struct ContainerSpec {
  std::string save_id;
  std::uint32_t rank = 0, world_size = 1;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t index_rows = 0, names_bytes = 0;
  bool shares = false;  ///< own chunks are below /fresh, and map() makes the data sets below /data
  std::vector<ContainerDataSet> data_sets;
};

/// Absolute file offsets; 0 for an empty table and for a compressed data set.
struct ContainerOffsets {
  std::uint64_t index = 0, names = 0;
  std::vector<std::uint64_t> data, chunks;
};

/// One container being written. Thread-safe. All functions throw Io with HDF5's own explanation, or
/// what the file threw.
class Container {
 public:
  /// `file` is new and empty, and outlives the container.
  Container(File& file, const ContainerSpec& spec);
  ~Container();
  Container(const Container&) = delete;
  Container& operator=(const Container&) = delete;

  const ContainerOffsets& offsets() const;
  /// Bytes that HDF5 has given out so far: the file's size, from close() on.
  std::uint64_t end() const;
  /// Where `bytes` bytes of a chunk of a compressed data set belong. Once for each chunk.
  std::uint64_t place_chunk(std::size_t data_set, std::uint64_t chunk, std::uint64_t bytes,
                            std::uint32_t filter_mask);
  /// Makes a shared data set of runs that follow on each other and cover it. Once for each.
  void map(std::size_t data_set, const std::vector<ChunkRun>& runs);
  /// Writes what HDF5 still holds. Afterwards only end() and offsets() may be called.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace unishard::detail
