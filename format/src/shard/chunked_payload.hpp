#pragma once
// The payload of a shard whose data sets are in chunks: pieces in any order become whole chunks,
// and the thread that completes one finds it in an earlier save, or encodes it and writes it where
// HDF5 says.
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

/// Thread-safe. Memory: a chunk for each that was begun and not completed, a few when pieces come
/// about in order; and borrowed codecs.
class ChunkedPayload {
 public:
  /// All refer to things that outlive it; `sets` are the container's, `base` may be null.
  ChunkedPayload(File& file, Container& container, std::span<const DataSetEntry> sets,
                 std::uint64_t chunk_bytes, Compression how, const BaseLinks* base);

  /// Bytes from `offset` of data set `set` on, within one chunk, and their CRC-64; each once.
  /// Returns whether a chunk was completed that the base does not hold.
  bool write(std::size_t set, std::uint64_t offset, std::span<const std::byte> bytes,
             std::uint64_t crc);
  /// After all were written; rows of chunks that were found are the base's.
  const std::vector<ChunkRow>& rows(std::size_t set) const { return rows_.at(set); }

 private:
  struct Part {
    std::uint64_t begin = 0, bytes = 0, crc64 = 0;
  };
  struct Open {
    std::vector<std::byte> bytes;  ///< of the whole chunk; what is padding is zero
    std::uint64_t missing = 0;
    std::vector<Part> parts;  ///< those that came

    std::uint64_t digest();  ///< of all bytes, once nothing is missing
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
  std::vector<CompressionGauge> gauges_;  ///< one per data set: they shrink differently
  std::mutex mutex_;
  std::map<std::pair<std::size_t, std::uint64_t>, Open> open_;
  std::vector<std::vector<std::byte>> spare_;  ///< memory of chunks that are complete
};

}  // namespace unishard::detail
