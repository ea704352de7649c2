#pragma once
// A tensor inside a torch.save container: the location of its storage and its strides.
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

/// A zip entry whose bytes do not match its checksum.
class DamagedEntry : public Error {
 public:
  DamagedEntry(std::string message, const EntryChecksum* entry);
  const EntryChecksum* entry() const noexcept { return entry_; }

 private:
  const EntryChecksum* entry_;
};

/// What a read is for: Data is compared with checksums, Sample (a look at a few elements) is not.
enum class Reading : std::uint8_t { Data, Sample };

/// The bytes of one storage: a range of the file, or memory when they had to be inflated.
struct StorageBytes {
  Window window;                                ///< exactly the storage
  std::shared_ptr<const std::string> inflated;  ///< if set, the bytes
  bool big_endian = false;
  std::shared_ptr<EntryChecksum> checksum = {};  ///< checksum of all bytes, if the archive has one

  std::uint64_t size() const { return inflated ? inflated->size() : window.size; }
  /// Throws: DamagedEntry when all bytes are known now and do not match the checksum.
  void read(std::uint64_t offset, std::span<std::byte> out, Reading reading = Reading::Data) const;
  /// Throws: DamagedEntry for the verdict Wrong.
  void require(EntryChecksum::Verdict verdict) const;
};

/// Reads, through `buffer`, the bytes that the storage's checksum still misses, and compares it.
/// Returns the number of bytes read.
/// Pre: the storage has a checksum.
/// Throws: DamagedEntry.
std::uint64_t complete_checksum(const StorageBytes& storage, std::span<std::byte> buffer);

/// Lifetime: keeps its storage alive.
struct TensorView {
  DType dtype = DType::Float32;
  Shape shape;
  std::vector<std::uint64_t> strides;  ///< in elements
  std::uint64_t offset = 0;            ///< position of element 0 in the storage, in elements
  std::string storage_key;             ///< equal keys in one file mean the same storage
  std::shared_ptr<const StorageBytes> storage;  ///< null: no data (a meta tensor)
  bool conjugate = false;                       ///< stored conjugated (complex types)
  bool negative = false;                        ///< stored negated

  std::uint64_t elements() const { return element_count(shape); }
  /// Returns true when the elements are row-major without gaps.
  bool contiguous() const;
  /// Reads elements `range`, row-major, into `out`, which has range.size() * size_of(dtype) bytes.
  /// Thread-safe.
  /// Throws: Unsupported for a meta tensor; DamagedEntry as StorageBytes::read() does.
  void read(ElementRange range, std::span<std::byte> out, Reading reading = Reading::Data) const;
  /// Returns all elements, after comparing the checksum of the whole storage.
  /// Throws: Corrupt above `limit_bytes`; DamagedEntry; Unsupported for a meta tensor.
  std::vector<std::byte> read_all(std::uint64_t limit_bytes) const;
};

/// Two views of one file have the same elements, of the same bytes, if and only if their identities
/// are equal.
struct ViewIdentity {
  std::string storage_key;
  std::uint64_t offset = 0;
  Shape shape;
  std::vector<std::uint64_t> strides;
  DType dtype = DType::Float32;
  bool conjugate = false, negative = false;
  auto operator<=>(const ViewIdentity&) const = default;
};
ViewIdentity identity_of(const TensorView& view);

/// Checks that every element lies in the storage. `what` is the tensor that messages name.
/// Throws: Corrupt; Unsupported for a view with far more elements than its storage.
void validate(const TensorView& view, std::string_view what);

}  // namespace unishard::converters::torch
