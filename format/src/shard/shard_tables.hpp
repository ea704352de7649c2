#pragma once
// The decoded and checked tables of an open shard. No value is used before the manifest's checksum
// was compared and every row was checked against the manifest.
#include "unishard/format/shard_entry.hpp"
#include "unishard/format/storage.hpp"

#include "shard/chunk_geometry.hpp"
#include "shard/tables.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::detail {

/// Lifetime: the catalog must outlive this object.
/// Thread safety: thread-safe once read_tables() has returned.
struct ShardTables {
  Path path;  ///< path of the shard
  ShardEntry entry;
  const Catalog& catalog;
  std::uint64_t chunk_bytes = 0;
  std::vector<IndexRow> rows = {};
  std::vector<std::vector<ChunkRow>> chunks = {};            ///< [data set][chunk]
  std::vector<std::vector<std::uint32_t>> rows_in_set = {};  ///< [data set]: rows by element offset
  std::vector<std::uint64_t> box_table = {};                 ///< content of /boxes

  ChunkGeometry geometry(std::size_t set) const { return {entry.data_sets[set], chunk_bytes}; }
  /// Returns the box and the contribution of a row; no box for a range.
  /// Pre: the row was checked.
  FragmentRow fragment(const IndexRow& row) const;
  ElementMap map_of(const IndexRow& row) const {
    return {catalog.tensors[row.tensor].shape, row.range, fragment(row).box};
  }
  /// Returns the number of the data set's first chunk, counted over all data sets in order.
  std::uint64_t first_chunk(std::size_t set) const;
  /// Returns the path of the file that ChunkRow::file `file` refers to.
  Path path_of(std::uint32_t file) const;
  /// Throws Corrupt with a message that begins with the shard's path.
  [[noreturn]] void corrupt(const std::string& problem, std::string hint = {}) const;
};

/// Reads chunk tables, names and index of the shard `file` into `tables`, and checks them.
/// Pre: the first four members of `tables` are set; `file` has entry.bytes bytes.
/// Throws: Corrupt, naming the contradiction.
void read_tables(const File& file, ShardTables& tables);

}  // namespace unishard::detail
