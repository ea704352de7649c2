#pragma once
// Results of reading the chunks of one shard, in the form that the processes of a team exchange.
#include "unishard/format/json.hpp"
#include "unishard/format/shard_reader.hpp"

#include "workflows/verify/verify.hpp"

#include <string_view>
#include <vector>

namespace unishard::tools {

struct ChunkFindings {
  /// A part of a stored fragment in sound chunks.
  struct Part {
    std::uint32_t row = 0;
    ElementRange own;  ///< own elements of the fragment
    std::uint64_t crc64 = 0;
    std::uint64_t contribution = 0;  ///< of a part of a box, to the digest of its tensor
  };
  std::vector<ShardReader::Damage> damages;
  std::vector<Part> parts;

  /// Joins consecutive parts, and removes parts that are a whole row whose digests equal the
  /// tables': sound bytes need no report.
  void condense(const ShardReader& shard, const Catalog& catalog);
  /// Appends the findings of another process.
  void append(ChunkFindings other);
  /// Appends findings to `out`, in the order of the file's bytes.
  /// Pre: the findings of all processes were appended.
  void report(const ShardReader& shard, const Catalog& catalog, std::vector<Finding>& out);
};

Json to_json(const ChunkFindings& findings);
/// Throws: Corrupt, naming `where`, for values that cannot belong to this shard.
ChunkFindings chunk_findings_from_json(const Json& json, const ShardReader& shard,
                                       const Catalog& catalog, std::string_view where);

}  // namespace unishard::tools
