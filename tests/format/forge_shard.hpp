#pragma once
// Changes bytes of a checkpoint's first shard and updates its checksums and the manifest to match,
// as an attacker would.
#include "unishard/format/manifest.hpp"

#include <cstdint>
#include <functional>
#include <string>

namespace unishard::test {

/// `edit` receives the file's bytes and its entry in the manifest.
void forge(const Path& tag, const std::function<void(std::string&, ShardEntry&)>& edit);

ChunkRow chunk_row(const std::string& shard, const DataSetEntry& set, std::uint64_t chunk);
void set_chunk_row(std::string& shard, const DataSetEntry& set, std::uint64_t chunk,
                   const ChunkRow& row);

}  // namespace unishard::test
