#pragma once
// Byte layouts of a shard's own tables: user block, index rows, chunk rows. SPEC.md, section "Shard
// file", defines them.
// Thread safety: values and pure functions.
#include "unishard/format/shard_entry.hpp"

#include "shard/container.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace unishard::detail {

/// Content of the first 4096 bytes of a shard.
struct UserBlock {
  std::uint32_t version = 0;
  std::uint32_t required_features = 0;
  std::string save_id;
  std::uint32_t rank = 0, world_size = 0;
};

std::vector<std::byte> encode_user_block(const UserBlock& block);
/// Pre: bytes.size() == kUserBlockBytes.
/// Throws: Corrupt or Unsupported, naming `path`.
UserBlock decode_user_block(std::span<const std::byte> bytes, const Path& path);

void encode_index_row(const IndexRow& row, std::span<std::byte> out);
IndexRow decode_index_row(std::span<const std::byte> bytes);

/// Returns the words (u64) of one box in /boxes: its contribution, its offsets, its sizes.
constexpr std::uint32_t box_words(std::size_t axes) {
  return static_cast<std::uint32_t>(1 + 2 * axes);
}
void append_box(std::vector<std::uint64_t>& words, BoxView box, std::uint64_t contribution);
std::vector<std::byte> encode_words(std::span<const std::uint64_t> words);
std::vector<std::uint64_t> decode_words(std::span<const std::byte> bytes);

/// Returns the bytes of a row of a chunk table. Rows of a shared data set also name a file.
std::size_t chunk_row_bytes(bool shared);
/// Encode and decode all rows of one data set, back to back.
std::vector<std::byte> encode_chunk_table(std::span<const ChunkRow> rows, bool shared);
std::vector<ChunkRow> decode_chunk_table(std::span<const std::byte> table, bool shared);

/// Returns an upper bound on the memory that the tables of a shard take while it is open.
/// Throws: Corrupt on overflow.
std::uint64_t table_memory(const ShardEntry& entry, std::uint64_t chunk_bytes);

/// A range of bytes in the file.
struct Extent {
  std::uint64_t offset = 0, bytes = 0;
};
/// Returns the payload that lies in the shard itself, sorted by offset. `rows` holds one chunk
/// table per data set.
std::vector<Extent> payload_extents(std::span<const DataSetEntry> sets,
                                    std::span<const std::vector<ChunkRow>> rows);

/// Returns the CRC-64 of all bytes of `file` outside its payload.
/// Pre: the extents lie in the file, sorted by offset, without overlap.
std::uint64_t metadata_crc64(const File& file, std::uint64_t file_bytes,
                             std::span<const Extent> payload);

}  // namespace unishard::detail
