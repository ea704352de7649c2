#include "shard/table_checks.hpp"

#include "unishard/format/checked.hpp"

#include "codec/chunk_codec.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::detail {
namespace {

bool is_sound_contiguous(const ChunkGeometry& geometry, const DataSetEntry& set,
                         std::uint64_t chunk, const ChunkRow& row) {
  return row.file_offset == set.offset + geometry.begin(chunk) &&
         row.stored_bytes == geometry.length(chunk) && row.filter_mask == 0;
}

bool is_sound_compressed(const ChunkGeometry& geometry, const ChunkRow& row) {
  const std::uint64_t whole = geometry.encoded_length();
  if (row.file_offset % kPayloadAlign != 0 || row.stored_bytes % kPayloadAlign != 0) return false;
  if (row.filter_mask == kNoFilter) return row.stored_bytes == whole;
  return row.filter_mask == kBothFilters && row.stored_bytes != 0 && row.stored_bytes < whole;
}

/// In a base a chunk lies as it is compressed there, or plain where the base is not compressed.
bool is_sound_shared(const ChunkGeometry& geometry, std::span<const BaseFile> bases,
                     std::uint64_t chunk, const ChunkRow& row) {
  if (row.file > bases.size()) return false;
  const std::uint64_t end = checked_add(row.file_offset, row.stored_bytes, "a chunk's end");
  if (row.file_offset < kUserBlockBytes || end > bases[row.file - 1].bytes) return false;
  return is_sound_compressed(geometry, row) ||
         (row.filter_mask == kNoFilter && row.file_offset % kPayloadAlign == 0 &&
          row.stored_bytes == geometry.length(chunk));
}

bool is_sound(const ShardTables& tables, std::size_t number, std::uint64_t chunk) {
  const DataSetEntry& set = tables.entry.data_sets[number];
  const ChunkGeometry geometry = tables.geometry(number);
  const ChunkRow& row = tables.chunks[number][chunk];
  if (!set.compressed) return is_sound_contiguous(geometry, set, chunk, row);
  return row.file == 0 ? is_sound_compressed(geometry, row)
                       : is_sound_shared(geometry, tables.entry.bases, chunk, row);
}

/// Returns what is wrong with the box of a row.
std::optional<std::string> box_problem_of(const ShardTables& tables, const IndexRow& row,
                                          const TensorInfo& tensor) {
  const std::size_t first = row.box - 1, words = box_words(tensor.shape.size());
  if (first > tables.box_table.size() || words > tables.box_table.size() - first)
    return "its box ends beyond the table of boxes";
  const BoxView box = tables.fragment(row).box;
  if (auto problem = box_problem(tensor.shape, box)) return problem;
  const ElementMap map(tensor.shape, box);
  if (map.is_range()) return "the box " + to_text(box) + " is a range, and must be stored as one";
  if (map.bounds() == row.range) return std::nullopt;
  return fmt::format("elements {} to {} are not the bounds of the box {}", row.range.begin,
                     row.range.end, to_text(box));
}

}  // namespace

void check_index_row(const ShardTables& tables, std::uint32_t number, IndexRow& row,
                     std::span<const std::byte> names) {
  const auto bad = [&](const std::string& problem) {
    tables.corrupt(fmt::format("index row {}: {}", number, problem));
  };
  const ShardEntry& entry = tables.entry;
  const Catalog& catalog = tables.catalog;
  if (row.tensor >= catalog.tensors.size())
    bad(fmt::format("tensor number {} of {}", row.tensor, catalog.tensors.size()));
  const TensorInfo& tensor = catalog.tensors[row.tensor];
  if (row.range.empty() || row.range.end > tensor.elements()) {
    bad(fmt::format("elements {} to {} of {}, which has {}", row.range.begin, row.range.end,
                    tensor.label(), tensor.elements()));
  }
  row.elements = row.range.size();
  if (row.box != 0) {
    if (const auto problem = box_problem_of(tables, row, tensor))
      bad(fmt::format("{}: {}", tensor.label(), *problem));
    row.elements = tables.map_of(row).elements();
  }
  if (checked_add(row.name_offset, row.name_bytes, "a name's end") > names.size())
    bad("the name ends beyond the table");
  const std::string name(reinterpret_cast<const char*>(names.data()) + row.name_offset,
                         row.name_bytes);
  if (name != tensor.fqn + '\0' + tensor.state)
    bad(fmt::format("the shard calls it {}, the manifest {}", quote(name), quote(tensor.label())));
  if (tensor.derived && row.data_set != kDerivedDataSet)
    bad(fmt::format("{} is stored, but the manifest marks it derived", tensor.label()));
  if (tensor.derived) return;
  if (row.data_set == kDerivedDataSet)
    bad(fmt::format("{} is not stored, and the manifest does not mark it derived", tensor.label()));
  if (row.data_set >= entry.data_sets.size())
    bad(fmt::format("data set number {} of {}", row.data_set, entry.data_sets.size()));
  const DataSetEntry& set = entry.data_sets[row.data_set];
  if (set.state != tensor.state || set.dtype != tensor.dtype)
    bad(fmt::format("{} is in data set {}", tensor.label(), set.name()));
  if (checked_add(row.element_offset, row.elements, "a fragment's end") > set.elements)
    bad(fmt::format("{} ends beyond data set {}", tensor.label(), set.name()));
  if (row.stats.nan_count > row.elements ||
      row.stats.inf_count > row.elements - row.stats.nan_count)
    bad("more NaN and Inf than elements");
}

void check_tiling(ShardTables& tables) {
  const std::vector<IndexRow>& rows = tables.rows;
  for (std::size_t set = 0; set < tables.entry.data_sets.size(); ++set) {
    const DataSetEntry& item = tables.entry.data_sets[set];
    std::vector<std::uint32_t>& order = tables.rows_in_set[set];
    std::ranges::sort(order, {}, [&](std::uint32_t row) { return rows[row].element_offset; });
    std::uint64_t next = 0;
    for (const std::uint32_t row : order) {
      if (rows[row].element_offset != next) {
        tables.corrupt(
            fmt::format("data set {}: {} at element {}, where {} begins", item.name(),
                        rows[row].element_offset < next ? "fragments overlap" : "there is a hole",
                        next, tables.catalog.tensors[rows[row].tensor].label()));
      }
      next += rows[row].elements;
    }
    if (next != item.elements) {
      tables.corrupt(fmt::format("data set {}: fragments fill {} of {} elements", item.name(), next,
                                 item.elements));
    }
  }
}

void check_chunk_rows(const ShardTables& tables) {
  for (std::size_t set = 0; set < tables.chunks.size(); ++set) {
    for (std::uint64_t chunk = 0; chunk < tables.chunks[set].size(); ++chunk) {
      if (is_sound(tables, set, chunk)) continue;
      const ChunkRow& row = tables.chunks[set][chunk];
      tables.corrupt(fmt::format(
          "chunk {} of data set {}: its row contradicts the layout ({} bytes at byte {} of file "
          "{})",
          chunk, tables.entry.data_sets[set].name(), row.stored_bytes, row.file_offset, row.file));
    }
  }
}

}  // namespace unishard::detail
