#pragma once
// What libhdf5 says of a file that anybody may have written, in a process of its own
// (hdf5_worker.hpp).
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include "containers/hdf5_worker.hpp"
#include "formats/hdf5/directory.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace unishard::converters::hdf5 {

/// Thread-safe; reads happen one at a time.
class ExistingFile {
 public:
  ExistingFile(const Path& path, std::uint64_t file_bytes);

  /// Call it first. Throws Corrupt when libhdf5 does not take the file, Unsupported when it is a
  /// native shard.
  Directory list();
  /// Elements of tensor `index` of list(), converted to little-endian and unpacked.
  void read(std::size_t index, ElementRange range, std::span<std::byte> out);
  /// From now on libhdf5 does not compare fletcher32. Before the first read().
  void ignore_checksums() { is_checked_ = false; }

 private:
  const Path path_;
  bool is_checked_ = true;
  Hdf5Worker process_;
};

}  // namespace unishard::converters::hdf5
