#pragma once
// One committed checkpoint, open for reading.
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

/// One committed checkpoint, open for reading. Thread-safe.
class CheckpointReader {
 public:
  /// Reads the manifest and every shard's tables, and checks that every element of every tensor is
  /// in exactly one fragment and that the fragments' digests combine to the tensors'. No payload is
  /// read.
  CheckpointReader(Storage& storage, Path tag_folder);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const Path& folder() const;
  const Manifest& manifest() const;
  const Catalog& catalog() const { return manifest().catalog; }
  const std::vector<std::unique_ptr<ShardReader>>& shards() const;

  struct StoredFragment {
    std::uint32_t shard = 0;
    std::uint32_t row = 0;
    ElementRange range;
  };
  /// The fragments of a tensor in element order.
  std::span<const StoredFragment> fragments(std::size_t tensor) const;

  /// Elements `range` of catalog().tensors[tensor] into `out`, checked; derived tensors are rounded
  /// from fp32. Memory: at most a few chunks. Throws Corrupt naming file, tensor and byte.
  void read(std::size_t tensor, ElementRange range, std::span<std::byte> out) const;
  /// The first element that lies in the same fragment and the same chunk as `element`: reads that
  /// begin and end at such elements read no byte twice. The tensor's end is one too.
  std::uint64_t chunk_start(std::size_t tensor, std::uint64_t element) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Opens the checkpoint that resolve_checkpoint() names, by read_stable(). An open checkpoint can
/// be read to its end although a writer removes it.
std::unique_ptr<CheckpointReader> open_checkpoint(Storage& storage, const Path& path,
                                                  const std::optional<std::string>& tag);

}  // namespace unishard
