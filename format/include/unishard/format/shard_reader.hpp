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

/// Chunks that were read and checked lately, shared by the shards of one checkpoint so that reading
/// many small tensors does not read their chunk again and again. Holds at most `capacity_bytes`.
/// Thread-safe.
class ChunkCache;
std::shared_ptr<ChunkCache> make_chunk_cache(std::uint64_t capacity_bytes = std::uint64_t{8} << 20);

/// Reads one shard. Everything the tables say is checked in the constructor; every payload byte is
/// checked against its chunk's checksum before it is handed out. Thread-safe.
class ShardReader {
 public:
  /// Throws Corrupt when the file is not the one that `entry` describes (size, save id, rank,
  /// checksum of the tables) or when a row points outside of it; the message says which and names
  /// the likely cause.
  ShardReader(Storage& storage, Path path, ShardEntry entry, std::string_view save_id,
              const Catalog& catalog, std::uint64_t chunk_bytes,
              std::shared_ptr<ChunkCache> cache = nullptr);
  ~ShardReader();
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  const ShardEntry& entry() const;
  const std::vector<IndexRow>& rows() const;
  const Path& path() const;
  /// The path of a file in which chunks lie. `file` is a ChunkRow::file.
  Path path_of(std::uint32_t file) const;
  const std::vector<ChunkRow>& chunks(std::size_t data_set) const;
  /// Elements `range` (a part of rows()[row].range) into `out`. Not for derived rows. Throws
  /// Corrupt naming the file, the tensor, the damaged element range and the byte range of the
  /// chunk.
  void read(std::size_t row, ElementRange range, std::span<std::byte> out) const;
  /// The first element of the row that lies in the chunk of `element`, which is one of the row's.
  std::uint64_t chunk_start(std::size_t row, std::uint64_t element) const;

  /// A chunk whose bytes do not match its checksum, or cannot be decoded.
  struct Damage {
    std::uint64_t chunk = 0;  ///< its number, as check_chunks() counts
    std::string data_set;
    std::uint32_t file = 0;  ///< as ChunkRow::file
    std::uint64_t file_offset = 0, bytes = 0;
    std::vector<Fragment> lost;  ///< what of which tensors lies in it
  };
  std::uint64_t chunk_count() const;
  /// Reads `count` chunks of one data set from chunk `first` on (numbered over all data sets in
  /// their order) into `buffer`, decoded and padding included, and returns those that are damaged.
  std::vector<Damage> check_chunks(std::uint64_t first, std::uint64_t count,
                                   std::span<std::byte> buffer) const;
  std::uint64_t chunk_bytes() const;  ///< size that `buffer` must have for each chunk
  /// Payload as it lies in the file and its bases, padding included; and what of it is in a base.
  std::uint64_t stored_payload_bytes() const;
  std::uint64_t shared_payload_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace unishard
