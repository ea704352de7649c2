#include "shard/tables.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/version.hpp"

#include "base/little_endian.hpp"
#include "shard/chunk_geometry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace unishard::detail {
namespace {

constexpr std::string_view kMagic = "UNISHARD";
constexpr std::size_t kSaveIdBytes = 32;
constexpr std::uint32_t kKnownFeatureBits = kZstdFeatureBit | kSharedFeatureBit | kBoxesFeatureBit;
constexpr std::size_t kBlockCrcOffset = kUserBlockBytes - 8;

}  // namespace

std::vector<std::byte> encode_user_block(const UserBlock& block) {
  std::vector<std::byte> bytes(kUserBlockBytes);
  const std::span<std::byte> out(bytes);
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  store(out, 8, block.version);
  store(out, 12, block.required_features);
  std::memcpy(bytes.data() + 16, block.save_id.data(),
              std::min(block.save_id.size(), kSaveIdBytes));
  store(out, 48, block.rank);
  store(out, 52, block.world_size);
  store(out, kBlockCrcOffset, crc64(std::span<const std::byte>(bytes).first(kBlockCrcOffset)));
  return bytes;
}

UserBlock decode_user_block(std::span<const std::byte> bytes, const Path& path) {
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: bytes 0 to 8 are not the mark of a UniShard shard", path.native()));
  }
  if (load<std::uint64_t>(bytes, kBlockCrcOffset) != crc64(bytes.first(kBlockCrcOffset))) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: the header (bytes 0 to {}) does not match its checksum", path.native(),
                      kUserBlockBytes));
  }
  UserBlock block;
  block.version = load<std::uint32_t>(bytes, 8);
  block.required_features = load<std::uint32_t>(bytes, 12);
  block.save_id.assign(reinterpret_cast<const char*>(bytes.data()) + 16, kSaveIdBytes);
  block.rank = load<std::uint32_t>(bytes, 48);
  block.world_size = load<std::uint32_t>(bytes, 52);
  if (block.version < kOldestReadableVersion || block.version > kFormatVersion ||
      (block.required_features & ~kKnownFeatureBits) != 0) {
    raise(
        ErrorCode::Unsupported,
        fmt::format("{}: format version {} (features {:#x}); this program reads versions {} to {}",
                    path.native(), block.version, block.required_features, kOldestReadableVersion,
                    kFormatVersion),
        "use a newer UniShard");
  }
  return block;
}

void encode_index_row(const IndexRow& row, std::span<std::byte> out) {
  store(out, 0, row.tensor);
  store(out, 4, row.data_set);
  store(out, 8, row.range.begin);
  store(out, 16, row.range.end);
  store(out, 24, row.element_offset);
  store(out, 32, row.crc64);
  store(out, 40, row.name_offset);
  store(out, 48, row.name_bytes);
  store(out, 52, row.box);
  store(out, 56, row.stats.nan_count);
  store(out, 64, row.stats.inf_count);
  store(out, 72, row.stats.min);
  store(out, 80, row.stats.max);
  store(out, 88, row.stats.sum_squares);
}

IndexRow decode_index_row(std::span<const std::byte> bytes) {
  IndexRow row;
  row.tensor = load<std::uint32_t>(bytes, 0);
  row.data_set = load<std::uint32_t>(bytes, 4);
  row.range = {load<std::uint64_t>(bytes, 8), load<std::uint64_t>(bytes, 16)};
  row.element_offset = load<std::uint64_t>(bytes, 24);
  row.crc64 = load<std::uint64_t>(bytes, 32);
  row.name_offset = load<std::uint64_t>(bytes, 40);
  row.name_bytes = load<std::uint32_t>(bytes, 48);
  row.box = load<std::uint32_t>(bytes, 52);
  row.stats.nan_count = load<std::uint64_t>(bytes, 56);
  row.stats.inf_count = load<std::uint64_t>(bytes, 64);
  row.stats.min = load<double>(bytes, 72);
  row.stats.max = load<double>(bytes, 80);
  row.stats.sum_squares = load<double>(bytes, 88);
  return row;
}

void append_box(std::vector<std::uint64_t>& words, BoxView box, std::uint64_t contribution) {
  words.push_back(contribution);
  words.insert(words.end(), box.offsets.begin(), box.offsets.end());
  words.insert(words.end(), box.sizes.begin(), box.sizes.end());
}

std::vector<std::byte> encode_words(std::span<const std::uint64_t> words) {
  std::vector<std::byte> bytes(words.size_bytes());
  for (std::size_t i = 0; i < words.size(); ++i) store(bytes, i * sizeof(words[i]), words[i]);
  return bytes;
}

std::vector<std::uint64_t> decode_words(std::span<const std::byte> bytes) {
  std::vector<std::uint64_t> words(bytes.size() / sizeof(std::uint64_t));
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = load<std::uint64_t>(bytes, i * sizeof(words[i]));
  return words;
}

std::size_t chunk_row_bytes(bool shared) { return shared ? 32 : 24; }

std::vector<std::byte> encode_chunk_table(std::span<const ChunkRow> rows, bool shared) {
  const std::size_t row_bytes = chunk_row_bytes(shared);
  std::vector<std::byte> table(rows.size() * row_bytes);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto out = std::span(table).subspan(i * row_bytes, row_bytes);
    store(out, 0, rows[i].file_offset);
    store(out, 8, rows[i].stored_bytes);
    store(out, 12, rows[i].filter_mask);
    store(out, 16, rows[i].crc64);
    if (shared) store(out, 24, rows[i].file);
  }
  return table;
}

std::vector<ChunkRow> decode_chunk_table(std::span<const std::byte> table, bool shared) {
  const std::size_t row_bytes = chunk_row_bytes(shared);
  std::vector<ChunkRow> rows(table.size() / row_bytes);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto in = table.subspan(i * row_bytes, row_bytes);
    rows[i] = {load<std::uint64_t>(in, 0), load<std::uint32_t>(in, 8), load<std::uint32_t>(in, 12),
               load<std::uint64_t>(in, 16), shared ? load<std::uint32_t>(in, 24) : 0};
  }
  return rows;
}

std::uint64_t table_memory(const ShardEntry& entry, std::uint64_t chunk_bytes) {
  constexpr std::uint64_t kPerChunk = sizeof(ChunkRow) + sizeof(Extent);
  constexpr std::uint64_t kPerRow = kIndexRowBytes + sizeof(IndexRow) + sizeof(std::uint32_t);
  constexpr std::string_view kWhat = "the size of a shard's tables";
  std::uint64_t bytes =
      checked_add(entry.names_bytes, checked_mul(entry.index_rows, kPerRow, kWhat), kWhat);
  bytes = checked_add(bytes, checked_mul(2, entry.boxes_bytes, kWhat), kWhat);
  for (const DataSetEntry& set : entry.data_sets) {
    const std::uint64_t count = ChunkGeometry(set, chunk_bytes).count();
    bytes = checked_add(bytes, checked_mul(count, kPerChunk + chunk_row_bytes(set.shared), kWhat),
                        kWhat);
  }
  return bytes;
}

std::vector<Extent> payload_extents(std::span<const DataSetEntry> sets,
                                    std::span<const std::vector<ChunkRow>> rows) {
  std::vector<Extent> extents;
  for (std::size_t set = 0; set < sets.size(); ++set) {
    if (!sets[set].compressed) {
      extents.push_back({sets[set].offset, sets[set].padded_bytes()});
      continue;
    }
    for (const ChunkRow& row : rows[set]) {
      if (row.file == 0) extents.push_back({row.file_offset, row.stored_bytes});
    }
  }
  std::ranges::sort(extents, {}, &Extent::offset);
  return extents;
}

std::uint64_t metadata_crc64(const File& file, std::uint64_t file_bytes,
                             std::span<const Extent> payload) {
  std::vector<std::byte> buffer(std::min<std::uint64_t>(file_bytes, std::uint64_t{256} << 10));
  std::uint64_t crc = 0;
  const auto add_run = [&](std::uint64_t begin, std::uint64_t end) {
    while (begin < end) {
      const auto run = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), end - begin));
      file.read_at(begin, run);
      crc = crc64(run, crc);
      begin += run.size();
    }
  };
  std::uint64_t at = 0;
  for (const Extent& extent : payload) {
    add_run(at, extent.offset);
    at = extent.offset + extent.bytes;
  }
  add_run(at, file_bytes);
  return crc;
}

}  // namespace unishard::detail
