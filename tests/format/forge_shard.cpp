#include "forge_shard.hpp"

#include "unishard/format/manifest.hpp"

#include "make_checkpoint.hpp"
#include "shard/chunk_geometry.hpp"
#include "shard/tables.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace unishard::test {
namespace {

template <class Bytes>
auto row_bytes(Bytes& shard, const DataSetEntry& set, std::uint64_t chunk) {
  const std::size_t bytes = detail::chunk_row_bytes(set.shared);
  return std::span(shard).subspan(set.chunks_offset + chunk * bytes, bytes);
}

}  // namespace

void forge(const Path& tag, const std::function<void(std::string&, ShardEntry&)>& edit) {
  edit_manifest(tag, [&](Manifest& manifest) {
    ShardEntry& entry = manifest.shards.front();
    std::string bytes = read_text(posix_storage(), tag / entry.file, 1 << 30);
    edit(bytes, entry);
    replace_text(posix_storage(), tag / entry.file, bytes);
    std::vector<std::vector<ChunkRow>> rows;
    for (const DataSetEntry& set : entry.data_sets) {
      auto& table = rows.emplace_back();
      const detail::ChunkGeometry geometry(set, manifest.chunk_bytes);
      for (std::uint64_t i = 0; i < geometry.count(); ++i)
        table.push_back(chunk_row(bytes, set, i));
    }
    auto payload = detail::payload_extents(entry.data_sets, rows);
    std::erase_if(payload, [&](const detail::Extent& extent) {
      return extent.offset > bytes.size() || extent.bytes > bytes.size() - extent.offset;
    });
    const auto file = posix_storage().open(tag / entry.file);
    entry.metadata_crc64 = detail::metadata_crc64(*file, entry.bytes, payload);
  });
}

ChunkRow chunk_row(const std::string& shard, const DataSetEntry& set, std::uint64_t chunk) {
  return detail::decode_chunk_table(std::as_bytes(row_bytes(shard, set, chunk)), set.shared)
      .front();
}

void set_chunk_row(std::string& shard, const DataSetEntry& set, std::uint64_t chunk,
                   const ChunkRow& row) {
  std::ranges::copy(detail::encode_chunk_table(std::span(&row, 1), set.shared),
                    std::as_writable_bytes(row_bytes(shard, set, chunk)).begin());
}

}  // namespace unishard::test
