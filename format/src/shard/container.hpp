#pragma once
// The HDF5 side of a shard: creates the container with all data sets allocated, and says where they
// are. The only place that calls HDF5 for writing; no payload passes through it. Calls are
// serialised by a mutex.
#include "unishard/format/dtype.hpp"
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::detail {

inline constexpr std::uint64_t kUserBlockBytes = 4096;
inline constexpr std::size_t kIndexRowBytes = 96;
inline constexpr std::size_t kChunkRowBytes = 24;

struct ContainerDataSet {
  std::string name;  ///< below /data and /chunks
  std::string state;
  DType dtype = DType::Float32;
  std::uint64_t elements = 0;         ///< real ones
  std::uint64_t padded_elements = 0;  ///< as allocated; > 0
  std::uint64_t chunks = 0;
};

struct ContainerSpec {
  std::string save_id;
  std::uint32_t rank = 0, world_size = 1;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t index_rows = 0, names_bytes = 0;
  std::vector<ContainerDataSet> data_sets;
};

/// Absolute file offsets; 0 for an empty table.
struct ContainerOffsets {
  std::uint64_t index = 0, names = 0;
  std::vector<std::uint64_t> data, chunks;
};

/// Creates `path` (which must not exist). Throws Io with HDF5's own explanation.
ContainerOffsets create_container(const Path& path, const ContainerSpec& spec);

}  // namespace unishard::detail
