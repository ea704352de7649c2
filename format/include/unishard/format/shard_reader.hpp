#pragma once
// Reads one rank's file by the offsets in the manifest and in the shard's tables, without HDF5.
#include "unishard/format/partition.hpp"
#include "unishard/format/shard_entry.hpp"
#include "unishard/format/storage.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard {

/// Cache of recently read and checked chunks, shared by the shards of one checkpoint, so that
/// reading many small tensors does not read the same chunk repeatedly. Thread-safe.
class ChunkCache;
std::shared_ptr<ChunkCache> make_chunk_cache(std::uint64_t capacity_bytes = std::uint64_t{6} << 20);

/// Reads one shard. The constructor checks everything in the tables; every payload byte is checked
/// against its chunk's checksum before it is returned. Thread-safe.
class ShardReader {
 public:
  /// Opens the file, and the bases that it points to, and keeps them open. Without `cache` it has a
  /// cache of its own.
  /// Lifetime: `catalog` must outlive this object.
  /// Throws: Corrupt or Unsupported, naming the likely cause, when the file or a base is missing or
  /// is not the one that `entry` describes (size, save id, rank, checksum of the tables), or when a
  /// row points outside its tensor, data set or file; MemoryLimit when the tables exceed
  /// description_limit().
  ShardReader(Storage& storage, Path path, ShardEntry entry, std::string_view save_id,
              const Catalog& catalog, std::uint64_t chunk_bytes,
              std::shared_ptr<ChunkCache> cache = nullptr);
  ~ShardReader();
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  const ShardEntry& entry() const;
  const std::vector<IndexRow>& rows() const;
  const Path& path() const;
  /// Returns the path of the file that ChunkRow::file `file` refers to.
  Path path_of(std::uint32_t file) const;
  const std::vector<ChunkRow>& chunks(std::size_t data_set) const;
  /// Returns rows()[row] with its box, if it is one.
  /// Lifetime: the result is valid as long as this object.
  FragmentRow fragment(std::size_t row) const;
  /// Returns where the own elements of rows()[row] lie in the tensor.
  ElementMap map_of(std::size_t row) const;
  /// Reads the own elements `own` of rows()[row] into `out`; the first of the fragment is number 0.
  /// Pre: the row is not derived.
  /// Throws: Corrupt, naming the file, the tensor, the damaged elements and the bytes of the chunk;
  /// InvalidArgument when `own` is not in the row or `out` has another size.
  void read(std::size_t row, ElementRange own, std::span<std::byte> out) const;
  /// Returns the first own element of the row in the chunk that contains own element `own`.
  std::uint64_t chunk_start(std::size_t row, std::uint64_t own) const;

  /// Elements of a tensor that are damaged: all of `bounds`, or some when a box is cut there.
  struct Lost {
    std::uint32_t tensor = 0;
    ElementRange bounds;
    std::uint64_t elements = 0;  ///< how many
  };
  /// A chunk that does not match its checksum or cannot be decoded.
  struct Damage {
    /// Number of the chunk over all data sets, as for check_chunks().
    std::uint64_t chunk = 0;
    std::string data_set;
    /// See ChunkRow::file.
    std::uint32_t file = 0;
    std::uint64_t file_offset = 0, bytes = 0;
    std::vector<Lost> lost;  ///< the tensors' elements in the chunk
  };
  /// Returns the number of chunks in all data sets.
  std::uint64_t chunk_count() const;
  /// Reads `count` chunks of one data set, from chunk `first` on, into `buffer`, decoded and
  /// including padding. Chunks are numbered over all data sets in order. Returns the damaged ones.
  /// Pre: `buffer` has room for `count` times chunk_bytes() bytes.
  /// Throws: InvalidArgument when the chunks are not in one data set.
  std::vector<Damage> check_chunks(std::uint64_t first, std::uint64_t count,
                                   std::span<std::byte> buffer) const;
  /// Returns the bytes that check_chunks() needs in `buffer` for each chunk.
  std::uint64_t chunk_bytes() const;
  /// Return the bytes of payload as stored in the file and its bases, including padding, and the
  /// part of it in bases.
  std::uint64_t stored_payload_bytes() const;
  std::uint64_t shared_payload_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace unishard
