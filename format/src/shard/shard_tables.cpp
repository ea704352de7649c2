#include "shard/shard_tables.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "shard/table_checks.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::detail {
namespace {

/// Bytes [offset, offset + rows * row_bytes), which must lie in the file.
std::vector<std::byte> read_table(const File& file, const ShardTables& tables,
                                  std::string_view name, std::uint64_t offset, std::uint64_t rows,
                                  std::uint64_t row_bytes) {
  const std::uint64_t bytes = checked_mul(rows, row_bytes, name);
  if (checked_add(offset, bytes, name) > tables.entry.bytes)
    tables.corrupt(fmt::format("table {} ends beyond the file", name));
  std::vector<std::byte> out(bytes);
  file.read_at(offset, out);
  return out;
}

/// The chunk tables say where compressed payload lies, and all bytes but the payload are under one
/// checksum: they are read before it is checked, and nothing but their bounds is believed.
void read_chunk_tables(const File& file, ShardTables& tables) {
  for (const DataSetEntry& set : tables.entry.data_sets) {
    const ChunkGeometry geometry(set, tables.chunk_bytes);
    if (set.compressed && geometry.encoded_length() > limits::kEncodedChunkBytesMax)
      tables.corrupt(fmt::format("compressed chunks of {} bytes are above the limit of {}",
                                 tables.chunk_bytes, limits::kEncodedChunkBytesMax));
    const std::vector<std::byte> table =
        read_table(file, tables, "chunks/" + set.name(), set.chunks_offset, geometry.count(),
                   chunk_row_bytes(set.shared));
    tables.chunks.push_back(decode_chunk_table(table, set.shared));
  }
}

std::string name_of(const ShardTables& tables, const Extent& extent) {
  for (std::size_t set = 0; set < tables.entry.data_sets.size(); ++set) {
    const DataSetEntry& item = tables.entry.data_sets[set];
    if (!item.compressed && item.offset == extent.offset) return "data set " + item.name();
    const bool is_chunk = std::ranges::any_of(tables.chunks[set], [&](const ChunkRow& row) {
      return row.file == 0 && row.file_offset == extent.offset;
    });
    if (item.compressed && is_chunk) return "a chunk of data set " + item.name();
  }
  return "payload";
}

void check_digest(const File& file, const ShardTables& tables) {
  const ShardEntry& entry = tables.entry;
  const std::vector<Extent> payload = payload_extents(entry.data_sets, tables.chunks);
  std::uint64_t end = kUserBlockBytes, bytes = 0;
  for (const Extent& extent : payload) {
    if (extent.offset < end) {
      tables.corrupt(fmt::format("{} overlaps what lies before it (byte {})",
                                 name_of(tables, extent), extent.offset));
    }
    end = checked_add(extent.offset, extent.bytes, "the end of payload");
    bytes += extent.bytes;
  }
  if (end > entry.bytes)
    tables.corrupt(fmt::format("the data sets end at byte {}, the file at {}", end, entry.bytes));
  if (entry.bytes - bytes > limits::kMetadataBytes)
    tables.corrupt("the tables are larger than the limit");
  if (metadata_crc64(file, entry.bytes, payload) != entry.metadata_crc64) {
    tables.corrupt(
        "the tables (all bytes outside the payload) do not match the checksum in the manifest",
        "a byte of the file's header or tables changed: use a copy or another checkpoint");
  }
}

void read_index(const File& file, ShardTables& tables) {
  const ShardEntry& entry = tables.entry;
  const auto names = read_table(file, tables, "names", entry.names_offset, entry.names_bytes, 1);
  const auto index =
      read_table(file, tables, "index", entry.index_offset, entry.index_rows, kIndexRowBytes);
  tables.box_table =
      decode_words(read_table(file, tables, "boxes", entry.boxes_offset, entry.boxes_bytes, 1));
  tables.rows.reserve(entry.index_rows);
  tables.rows_in_set.resize(entry.data_sets.size());
  std::uint64_t names_end = 0, boxes_end = 0;  // of the rows so far
  for (std::uint32_t i = 0; i < entry.index_rows; ++i) {
    IndexRow row = decode_index_row(std::span(index).subspan(i * kIndexRowBytes, kIndexRowBytes));
    check_index_row(tables, i, row, names);
    if (row.box != 0) {
      if (row.box != boxes_end + 1)
        tables.corrupt(fmt::format("index row {}: its box does not follow the one before", i));
      boxes_end += box_words(tables.catalog.tensors[row.tensor].shape.size());
    }
    if (row.name_offset > names_end)
      tables.corrupt(fmt::format("index row {}: there is a hole before its name", i));
    names_end = std::max<std::uint64_t>(names_end, row.name_offset + row.name_bytes);
    if (info(tables.catalog.tensors[row.tensor].dtype).kind == Kind::Float)
      row.stats.count = row.elements;
    if (row.data_set != kDerivedDataSet) tables.rows_in_set[row.data_set].push_back(i);
    tables.rows.push_back(row);
  }
  if (names_end != names.size()) {
    tables.corrupt(
        fmt::format("the names of the rows fill {} bytes of the name table, the manifest says {}",
                    names_end, names.size()),
        "the manifest is wrong, although its checksum is right: use another checkpoint");
  }
  if (boxes_end != tables.box_table.size()) {
    tables.corrupt(
        fmt::format("the boxes of the rows fill {} words of the table of boxes, which has {}",
                    boxes_end, tables.box_table.size()));
  }
}

}  // namespace

FragmentRow ShardTables::fragment(const IndexRow& row) const {
  if (row.box == 0) return {.row = &row};
  const std::size_t axes = catalog.tensors[row.tensor].shape.size();
  const auto words = std::span(box_table).subspan(row.box - 1, box_words(axes));
  return {.row = &row,
          .box = {words.subspan(1, axes), words.subspan(1 + axes)},
          .contribution = words.front()};
}

std::uint64_t ShardTables::first_chunk(std::size_t set) const {
  std::uint64_t number = 0;
  for (std::size_t before = 0; before < set; ++before) number += chunks[before].size();
  return number;
}

Path ShardTables::path_of(std::uint32_t file) const {
  return file == 0 ? path : path.parent_path() / entry.bases.at(file - 1).file;
}

void ShardTables::corrupt(const std::string& problem, std::string hint) const {
  raise(ErrorCode::Corrupt, fmt::format("{}: {}", path.native(), problem), std::move(hint));
}

void read_tables(const File& file, ShardTables& tables) {
  read_chunk_tables(file, tables);
  check_digest(file, tables);
  check_chunk_rows(tables);
  read_index(file, tables);
  check_tiling(tables);
}

}  // namespace unishard::detail
