#pragma once
// The tables of an open shard, decoded and proven. Nothing of them is believed before the checksum
// of the manifest has been compared and every row has been checked against the manifest.
#include "unishard/format/shard_entry.hpp"
#include "unishard/format/storage.hpp"

#include "shard/chunk_geometry.hpp"
#include "shard/tables.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::detail {

/// Lifetime: the catalog must outlive it.
/// Thread safety: thread-safe once read_tables() has returned.
struct ShardTables {
  Path path;  ///< of the shard
  ShardEntry entry;
  const Catalog& catalog;
  std::uint64_t chunk_bytes = 0;
  std::vector<IndexRow> rows = {};
  std::vector<std::vector<ChunkRow>> chunks = {};            ///< [data set][chunk]
  std::vector<std::vector<std::uint32_t>> rows_in_set = {};  ///< [data set]: rows by element offset

  ChunkGeometry geometry(std::size_t set) const { return {entry.data_sets[set], chunk_bytes}; }
  /// Number of the data set's first chunk, counted over all data sets in their order.
  std::uint64_t first_chunk(std::size_t set) const;
  /// Path of the file in which a chunk lies; `file` is a ChunkRow::file.
  Path path_of(std::uint32_t file) const;
  /// Throws: Corrupt, always, with the shard's path in front.
  [[noreturn]] void corrupt(const std::string& problem, std::string hint = {}) const;
};

/// Reads chunk tables, names and index of the shard `file` into `tables` and checks them.
/// Pre: `tables` has its first four members; `file` has entry.bytes bytes.
/// Throws: Corrupt naming what does not fit.
void read_tables(const File& file, ShardTables& tables);

}  // namespace unishard::detail
