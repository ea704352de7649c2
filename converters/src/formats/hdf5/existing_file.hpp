#pragma once
// Reads a foreign HDF5 file through libhdf5 in a child process (hdf5_worker.hpp).
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include "containers/hdf5_worker.hpp"
#include "formats/hdf5/directory.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace unishard::converters::hdf5 {

/// Thread-safe. Only one read runs at a time.
class ExistingFile {
 public:
  /// Starts the child. Construct it before other threads run; see Hdf5Worker.
  ExistingFile(const Path& path, std::uint64_t file_bytes);

  /// Returns the content of the file.
  /// Pre: called before the first read().
  /// Throws: Corrupt when libhdf5 refuses the file; Unsupported for a native shard.
  Directory list();
  /// Reads elements of tensor `index` of list(), unpacked and converted to little-endian.
  void read(std::size_t index, ElementRange range, std::span<std::byte> out);
  /// Stops comparing fletcher32.
  /// Pre: called before the first read().
  void ignore_checksums() { is_checked_ = false; }

 private:
  const Path path_;
  bool is_checked_ = true;
  Hdf5Worker process_;
};

}  // namespace unishard::converters::hdf5
