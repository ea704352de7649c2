#pragma once
// A tensor inside a torch.save container: where its storage lies and how its elements are strided.
#include "unishard/format/error.hpp"
#include "unishard/format/tensor_info.hpp"

#include "containers/entry_checksum.hpp"
#include "containers/pickle.hpp"
#include "containers/zip_reader.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// A zip entry that is not what was written.
class DamagedEntry : public Error {
 public:
  DamagedEntry(std::string message, const EntryChecksum* entry);
  const EntryChecksum* entry() const noexcept { return entry_; }  ///< which; to compare, not to use

 private:
  const EntryChecksum* entry_;
};

/// What is read: the data, which is checked, or a look at a few elements of it, which is not.
enum class Reading : std::uint8_t { Data, Sample };

/// The bytes of one storage. Positioned in the file, or in memory when they had to be inflated.
struct StorageBytes {
  Window window;                                ///< exactly the storage
  std::shared_ptr<const std::string> inflated;  ///< set: read from here
  bool big_endian = false;
  std::shared_ptr<EntryChecksum> checksum = {};  ///< of all bytes, where the archive has one

  std::uint64_t size() const { return inflated ? inflated->size() : window.size; }
  /// Throws DamagedEntry when now all bytes are known and do not match the checksum.
  void read(std::uint64_t offset, std::span<std::byte> out, Reading reading = Reading::Data) const;
  /// Throws DamagedEntry for the verdict Wrong.
  void require(EntryChecksum::Verdict verdict) const;
};

/// Reads what is missing of a storage that has a checksum, `buffer` by `buffer`, so that it is
/// compared; returns how many bytes that were. Throws DamagedEntry.
std::uint64_t complete_checksum(const StorageBytes& storage, std::span<std::byte> buffer);

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
  void read(ElementRange range, std::span<std::byte> out, Reading reading = Reading::Data) const;
  /// All elements, of a storage whose checksum is compared at once.
  std::vector<std::byte> read_all(std::uint64_t limit_bytes) const;
};

/// Checks that every element lies in the storage. Throws Corrupt naming `what`.
void validate(const TensorView& view, std::string_view what);

}  // namespace unishard::converters::torch
