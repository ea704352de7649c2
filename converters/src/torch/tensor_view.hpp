#pragma once
// A tensor inside a torch.save container: where its storage lies and how its elements are strided.
#include "unishard/format/tensor_info.hpp"

#include "torch/pickle.hpp"
#include "torch/zip_reader.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// The bytes of one storage. Positioned in the file, or in memory when they had to be inflated.
struct StorageBytes {
  Window window;                                ///< exactly the storage
  std::shared_ptr<const std::string> inflated;  ///< set: read from here
  bool big_endian = false;
  std::optional<std::uint32_t> crc32;  ///< of all bytes, where the archive says so

  std::uint64_t size() const { return inflated ? inflated->size() : window.size; }
  void read(std::uint64_t offset, std::span<std::byte> out) const;
};

/// Reads all of a storage that has a CRC-32, `buffer` by `buffer`; returns how many bytes that
/// were. Throws Corrupt naming the file and the bytes where they do not match.
std::uint64_t check_crc32(const StorageBytes& storage, std::span<std::byte> buffer);

struct TensorView {
  DType dtype = DType::Float32;
  Shape shape;
  std::vector<std::uint64_t> strides;           ///< in elements
  std::uint64_t offset = 0;                     ///< of element 0 in the storage, in elements
  std::string storage_key;                      ///< equal keys of one file are the same storage
  std::shared_ptr<const StorageBytes> storage;  ///< null: no data (a meta tensor)
  bool conjugate = false;                       ///< stored conjugated (complex types)
  bool negative = false;                        ///< stored negated

  std::uint64_t elements() const { return element_count(shape); }
  /// Row-major without gaps.
  bool contiguous() const;
  /// Elements `range`, row-major, into `out` (range.size() * size_of(dtype) bytes). Thread-safe.
  void read(ElementRange range, std::span<std::byte> out) const;
  std::vector<std::byte> read_all(std::uint64_t limit_bytes) const;
};

/// Checks that every element lies in the storage. Throws Corrupt naming `what`.
void validate(const TensorView& view, std::string_view what);

}  // namespace unishard::converters::torch
