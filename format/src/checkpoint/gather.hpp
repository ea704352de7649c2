#pragma once
// Copies elements of one stored fragment to where a reader wants them.
#include "unishard/format/shard_reader.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace unishard::detail {

/// Reads the elements of row `row` of `shard` that are among the elements of `wanted` into `out`,
/// which holds all elements of `wanted` in their order.
/// Pre: the row is not derived, and `out` has the size of `wanted`.
/// Throws: Corrupt, as ShardReader::read() does.
/// Memory: that of BatchedRead.
void gather(const ShardReader& shard, std::size_t row, const ElementMap& wanted,
            std::span<std::byte> out);

}  // namespace unishard::detail
