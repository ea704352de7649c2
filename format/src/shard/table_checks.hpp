#pragma once
// Checks the rows of a shard's tables against the rules of SPEC.md.
#include "shard/shard_tables.hpp"

#include <cstdint>
#include <span>

namespace unishard::detail {

/// Checks row `number` of the index against the catalog, the data sets and its box, and sets
/// row.elements; `names` is the shard's table of names.
/// Throws: Corrupt naming the row.
void check_index_row(const ShardTables& tables, std::uint32_t number, IndexRow& row,
                     std::span<const std::byte> names);
/// Checks that the fragments fill each data set without overlap or hole; sorts rows_in_set.
/// Throws: Corrupt naming the data set and the tensor.
void check_tiling(ShardTables& tables);
/// Checks that every chunk lies where SPEC.md allows it.
/// Throws: Corrupt, naming the chunk.
void check_chunk_rows(const ShardTables& tables);

}  // namespace unishard::detail
