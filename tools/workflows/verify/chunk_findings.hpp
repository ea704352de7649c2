#pragma once
// What reading the chunks of one shard showed, as the processes of a team tell it to each other.
#include "unishard/format/json.hpp"
#include "unishard/format/shard_reader.hpp"

#include "workflows/verify/verify.hpp"

#include <string_view>
#include <vector>

namespace unishard::tools {

struct ChunkFindings {
  /// A part of a stored fragment that lay in sound chunks.
  struct Part {
    std::uint32_t row = 0;
    ElementRange range;  ///< of the tensor
    std::uint64_t crc64 = 0;
  };
  std::vector<ShardReader::Damage> damages;
  std::vector<Part> parts;

  /// Joins parts that follow each other, and drops those that are a whole row with the digest that
  /// the index says: about sound bytes there is nothing to tell.
  void condense(const ShardReader& shard, const Catalog& catalog);
  /// Appends what another process found.
  void append(ChunkFindings other);
  /// Findings of all processes together, in the order of the file's bytes.
  void report(const ShardReader& shard, const Catalog& catalog, std::vector<Finding>& out);
};

Json to_json(const ChunkFindings& findings);
/// Throws Corrupt naming `where` for what cannot be of this shard.
ChunkFindings chunk_findings_from_json(const Json& json, const ShardReader& shard,
                                       const Catalog& catalog, std::string_view where);

}  // namespace unishard::tools
