#pragma once
// Collects the payload of a shard that is stored in chunks. Bytes arrive in any order; the thread
// that completes a chunk looks for it in the base, or else encodes it and writes it where HDF5
// places it.
#include "unishard/format/compression.hpp"
#include "unishard/format/shard_entry.hpp"

#include "codec/chunk_codec.hpp"
#include "shard/base_links.hpp"
#include "shard/compression_gauge.hpp"
#include "shard/container.hpp"
#include "shard/tables.hpp"

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace unishard::detail {

/// Thread-safe. Memory: one chunk for each that is begun and not complete (few when bytes arrive
/// roughly in order), and borrowed codecs.
class ChunkedPayload {
 public:
  /// `sets` are the container's data sets; `base` may be null.
  /// Lifetime: everything passed by reference, span or pointer must outlive this object.
  ChunkedPayload(File& file, Container& container, std::span<const DataSetEntry> sets,
                 std::uint64_t chunk_bytes, Compression how, const BaseLinks* base);

  /// Adds the bytes from `offset` of data set `set` on, which lie in one chunk; `crc` is their
  /// CRC-64. Returns true when this completed a chunk that the base does not hold.
  /// Pre: each byte is added once.
  bool write(std::size_t set, std::uint64_t offset, std::span<const std::byte> bytes,
             std::uint64_t crc);
  /// Returns the chunk table of `set`. Rows of chunks found in the base are the base's.
  /// Pre: all bytes were added.
  const std::vector<ChunkRow>& rows(std::size_t set) const { return rows_.at(set); }

 private:
  struct Part {
    std::uint64_t begin = 0, bytes = 0, crc64 = 0;
  };
  struct Open {
    std::vector<std::byte> bytes;  ///< the whole chunk; padding is zero
    std::uint64_t missing = 0;
    std::vector<Part> parts;  ///< those that have arrived

    std::uint64_t digest();  ///< CRC-64 of the chunk once nothing is missing
  };

  Open begin_chunk(std::size_t set, std::uint64_t chunk);
  bool store(std::size_t set, std::uint64_t chunk, std::span<const std::byte> bytes,
             std::uint64_t crc);
  std::span<const std::byte> encode(ChunkCodec& codec, std::size_t set,
                                    std::span<const std::byte> bytes);

  File& file_;
  Container& container_;
  const std::span<const DataSetEntry> sets_;
  const std::uint64_t chunk_bytes_;
  const Compression how_;
  const BaseLinks* const base_;
  std::vector<std::vector<ChunkRow>> rows_;
  /// One per data set, because their compression ratios differ.
  std::vector<CompressionGauge> gauges_;
  std::mutex mutex_;
  std::map<std::pair<std::size_t, std::uint64_t>, Open> open_;
  std::vector<std::vector<std::byte>> spare_;  ///< memory of completed chunks, for reuse
};

}  // namespace unishard::detail
