#include "workflows/verify/chunk_findings.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

namespace unishard::tools {
namespace {

using Damage = ShardReader::Damage;
using Part = ChunkFindings::Part;

Finding describe(const Damage& damage, const ShardReader& shard, const Catalog& catalog) {
  Finding finding{
      .code = "chunk-damaged",
      .path = shard.path_of(damage.file),
      .message = fmt::format("data set {}: the bytes do not match their checksum", damage.data_set),
      .hint = "use another checkpoint, or a copy of this file",
      .bytes = Finding::Bytes{damage.file_offset, damage.file_offset + damage.bytes},
      .lost = {}};
  for (const Fragment& part : damage.lost)
    finding.lost.push_back({catalog.tensors[part.tensor].label(), part.range});
  if (damage.lost.empty()) finding.message += " (padding only: no tensor is affected)";
  return finding;
}

/// Reads what to_json() wrote.
class Decoder {
 public:
  Decoder(const ShardReader& shard, const Catalog& catalog, std::string_view where)
      : shard_(shard), catalog_(catalog), where_(where) {}

  ChunkFindings decode(const Json& json) const {
    ChunkFindings out;
    for (const Json& item : list(list(json, 2)[0])) out.damages.push_back(damage(list(item, 6)));
    for (const Json& item : list(json[1])) out.parts.push_back(part(list(item, 4)));
    return out;
  }

 private:
  Damage damage(const Json& item) const {
    if (!item[1].is_string()) refuse();
    Damage out{.chunk = number(item[0]),
               .data_set = item[1].get<std::string>(),
               .file = static_cast<std::uint32_t>(number(item[2], shard_.entry().bases.size() + 1)),
               .file_offset = number(item[3]),
               .bytes = number(item[4]),
               .lost = {}};
    if (out.bytes > std::numeric_limits<std::uint64_t>::max() - out.file_offset) refuse();
    for (const Json& lost : list(item[5])) {
      const auto tensor = number(list(lost, 3)[0], catalog_.tensors.size());
      out.lost.push_back({static_cast<std::uint32_t>(tensor),
                          range(lost, {0, catalog_.tensors[tensor].elements()})});
    }
    return out;
  }

  Part part(const Json& item) const {
    const auto row = number(item[0], shard_.rows().size());
    return {static_cast<std::uint32_t>(row), range(item, shard_.rows()[row].range),
            number(item[3])};
  }

  ElementRange range(const Json& item, ElementRange within) const {
    const ElementRange out{number(item[1]), number(item[2])};
    if (out.empty() || out.begin < within.begin || out.end > within.end) refuse();
    return out;
  }

  std::uint64_t number(const Json& json, std::optional<std::uint64_t> end = {}) const {
    if (!json.is_number_unsigned()) refuse();
    const auto value = json.get<std::uint64_t>();
    if (end && value >= *end) refuse();
    return value;
  }

  const Json& list(const Json& json, std::optional<std::size_t> size = {}) const {
    if (!json.is_array() || (size && json.size() != *size)) refuse();
    return json;
  }

  [[noreturn]] void refuse() const {
    raise(ErrorCode::Corrupt, fmt::format("{}: not the findings of a process that checks {}",
                                          where_, shard_.path().string()));
  }

  const ShardReader& shard_;
  const Catalog& catalog_;
  std::string_view where_;
};

}  // namespace

void ChunkFindings::condense(const ShardReader& shard, const Catalog& catalog) {
  std::ranges::sort(parts, {}, [](const Part& part) { return std::pair(part.row, part.range); });
  std::vector<Part> joined;
  for (const Part& part : parts) {
    const DType dtype = catalog.tensors[shard.rows()[part.row].tensor].dtype;
    const bool follows = !joined.empty() && joined.back().row == part.row &&
                         joined.back().range.end == part.range.begin;
    if (!follows) {
      joined.push_back(part);
      continue;
    }
    Part& last = joined.back();
    last.crc64 = crc64_combine(last.crc64, part.crc64, part.range.size() * size_of(dtype));
    last.range.end = part.range.end;
  }
  std::erase_if(joined, [&](const Part& part) {
    const IndexRow& row = shard.rows()[part.row];
    return part.range == row.range && part.crc64 == row.crc64;
  });
  parts = std::move(joined);
}

void ChunkFindings::append(ChunkFindings other) {
  std::ranges::move(other.damages, std::back_inserter(damages));
  std::ranges::move(other.parts, std::back_inserter(parts));
}

void ChunkFindings::report(const ShardReader& shard, const Catalog& catalog,
                           std::vector<Finding>& out) {
  std::ranges::sort(
      damages, {}, [](const Damage& damage) { return std::pair(damage.file, damage.file_offset); });
  for (const Damage& damage : damages) out.push_back(describe(damage, shard, catalog));
  condense(shard, catalog);
  for (const Part& part : parts) {
    const IndexRow& row = shard.rows()[part.row];
    if (part.range != row.range) continue;  // the rest is damaged, which is reported already
    const std::string label = catalog.tensors[row.tensor].label();
    out.push_back({.code = "fragment-digest-differs",
                   .path = shard.path(),
                   .message = fmt::format("{}: its bytes have digest {}, the index says {}", label,
                                          hex64(part.crc64), hex64(row.crc64)),
                   .hint = "use another checkpoint, or a copy of this file",
                   .bytes = {},
                   .lost = {{label, row.range}}});
  }
}

Json to_json(const ChunkFindings& findings) {
  Json damages = Json::array(), parts = Json::array();
  for (const Damage& damage : findings.damages) {
    Json lost = Json::array();
    for (const Fragment& part : damage.lost)
      lost.push_back(Json::array({part.tensor, part.range.begin, part.range.end}));
    damages.push_back(Json::array({damage.chunk, damage.data_set, damage.file, damage.file_offset,
                                   damage.bytes, std::move(lost)}));
  }
  for (const Part& part : findings.parts)
    parts.push_back(Json::array({part.row, part.range.begin, part.range.end, part.crc64}));
  return Json::array({std::move(damages), std::move(parts)});
}

ChunkFindings chunk_findings_from_json(const Json& json, const ShardReader& shard,
                                       const Catalog& catalog, std::string_view where) {
  return Decoder(shard, catalog, where).decode(json);
}

}  // namespace unishard::tools
