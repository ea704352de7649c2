#pragma once
// Reads a committed checkpoint: its manifest, and the elements of its tensors.
#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/format/manifest.hpp"
#include "unishard/format/shard_reader.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unishard {

/// One committed checkpoint, open for reading. It stays readable to its end although a writer
/// removes it. Thread-safe.
class CheckpointReader {
 public:
  /// Opens the checkpoint. Reads the manifest and the tables of every shard, and checks that
  /// exactly one fragment holds each element of each tensor and that the digests of the fragments
  /// combine to the digests of the tensors. Reads no payload. Keeps every shard's file open.
  /// Throws: NotFound without a manifest; Corrupt or Unsupported, naming file and field;
  /// MemoryLimit as MemoryBudget does.
  CheckpointReader(Storage& storage, Path tag_folder);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const Path& folder() const;
  const Manifest& manifest() const;
  const Catalog& catalog() const { return manifest().catalog; }
  const std::vector<std::unique_ptr<ShardReader>>& shards() const;

  /// A fragment: row `row` of the index of shard `shard`.
  struct StoredFragment {
    std::uint32_t shard = 0;
    std::uint32_t row = 0;
    ElementRange range;  ///< of a box, its bounds
  };
  /// Returns the fragments of a tensor in the order of their first elements. The second function
  /// leaves out fragments at both ends that hold no element of `range`; others may hold none
  /// either. Lifetime: the result is valid as long as this object.
  std::span<const StoredFragment> fragments(std::size_t tensor) const;
  std::span<const StoredFragment> fragments(std::size_t tensor, ElementRange range) const;
  /// Returns the box of a fragment; an empty one for a range.
  /// Lifetime: the result is valid as long as this object.
  BoxView box_of(const StoredFragment& fragment) const;

  /// Reads elements `range` of catalog().tensors[tensor] into `out`, checked against the chunks'
  /// checksums. A derived tensor is rounded from its fp32 state. Takes the memory of a few chunks.
  /// Throws: Corrupt, naming file, tensor and bytes; InvalidArgument when `range` or the size of
  /// `out` is wrong.
  void read(std::size_t tensor, ElementRange range, std::span<std::byte> out) const;
  /// Reads the elements of `box`, row-major, in the same way. Reads the chunks that hold elements
  /// of the box.
  void read_box(std::size_t tensor, BoxView box, std::span<std::byte> out) const;
  /// Returns an element, at most `element`, at which a read is best split. In a range it is the
  /// first element in the same fragment and chunk as `element`: reads that begin and end at such
  /// elements, or at the tensor's end, read no chunk twice. Where boxes lie side by side, it begins
  /// a row of all of them, in which a chunk of one of them begins.
  std::uint64_t chunk_start(std::size_t tensor, std::uint64_t element) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Opens the checkpoint that resolve_checkpoint() returns, by read_stable().
/// Throws: what resolve_checkpoint() and CheckpointReader throw.
std::unique_ptr<CheckpointReader> open_checkpoint(Storage& storage, const Path& path,
                                                  const std::optional<std::string>& tag);

}  // namespace unishard
