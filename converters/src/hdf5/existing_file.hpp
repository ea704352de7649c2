#pragma once
// What libhdf5 says of a file that anybody may have written. Each call opens the file anew in a
// process of its own (own_process.hpp); no HDF5 object outlives it. Thread-safe.
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include "hdf5/directory.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace unishard::converters::hdf5 {

/// Throws Corrupt when libhdf5 does not take it, Unsupported when it is a native shard.
Directory list_existing(const Path& path, std::uint64_t file_bytes);

/// Elements of a listed tensor, converted to little-endian and unpacked.
void read_existing(const Path& path, const ListedTensor& tensor, ElementRange range,
                   std::span<std::byte> out);

}  // namespace unishard::converters::hdf5
