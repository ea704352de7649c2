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
  for (const ShardReader::Lost& part : damage.lost)
    finding.lost.emplace_back(catalog.tensors[part.tensor].label(), part.bounds, part.elements);
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
    for (const Json& item : list(json[1])) out.parts.push_back(part(list(item, 5)));
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
      const auto tensor = number(list(lost, 4)[0], catalog_.tensors.size());
      const ElementRange bounds = range(lost, catalog_.tensors[tensor].elements());
      out.lost.push_back(
          {static_cast<std::uint32_t>(tensor), bounds, number(lost[3], bounds.size() + 1)});
    }
    return out;
  }

  Part part(const Json& item) const {
    const auto row = number(item[0], shard_.rows().size());
    return {static_cast<std::uint32_t>(row), range(item, shard_.rows()[row].elements),
            number(item[3]), number(item[4])};
  }

  ElementRange range(const Json& item, std::uint64_t elements) const {
    const ElementRange out{number(item[1]), number(item[2])};
    if (out.empty() || out.end > elements) refuse();
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
  std::ranges::sort(parts, {}, [](const Part& part) { return std::pair(part.row, part.own); });
  std::vector<Part> joined;
  for (const Part& part : parts) {
    const DType dtype = catalog.tensors[shard.rows()[part.row].tensor].dtype;
    const bool follows =
        !joined.empty() && joined.back().row == part.row && joined.back().own.end == part.own.begin;
    if (!follows) {
      joined.push_back(part);
      continue;
    }
    Part& last = joined.back();
    last.crc64 = crc64_combine(last.crc64, part.crc64, part.own.size() * size_of(dtype));
    last.contribution ^= part.contribution;
    last.own.end = part.own.end;
  }
  std::erase_if(joined, [&](const Part& part) {
    const FragmentRow fragment = shard.fragment(part.row);
    return part.own.size() == fragment.row->elements && part.crc64 == fragment.row->crc64 &&
           part.contribution == fragment.contribution;
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
    const FragmentRow fragment = shard.fragment(part.row);
    const IndexRow& row = *fragment.row;
    // If a part is damaged, that is reported already.
    if (part.own.size() != row.elements) continue;
    const std::string label = catalog.tensors[row.tensor].label();
    const bool has_digest = part.crc64 == row.crc64;
    out.push_back(
        {.code = "fragment-digest-differs",
         .path = shard.path(),
         .message = has_digest ? fmt::format("{}: the box {} contributes {} to the tensor's "
                                             "digest, the table of boxes says {}",
                                             label, to_text(fragment.box), hex64(part.contribution),
                                             hex64(fragment.contribution))
                               : fmt::format("{}: its bytes have digest {}, the index says {}",
                                             label, hex64(part.crc64), hex64(row.crc64)),
         .hint = "use another checkpoint, or a copy of this file",
         .bytes = {},
         .lost = {{label, row.range, row.elements}}});
  }
}

Json to_json(const ChunkFindings& findings) {
  Json damages = Json::array(), parts = Json::array();
  for (const Damage& damage : findings.damages) {
    Json lost = Json::array();
    for (const ShardReader::Lost& part : damage.lost)
      lost.push_back(Json::array({part.tensor, part.bounds.begin, part.bounds.end, part.elements}));
    damages.push_back(Json::array({damage.chunk, damage.data_set, damage.file, damage.file_offset,
                                   damage.bytes, std::move(lost)}));
  }
  for (const Part& part : findings.parts)
    parts.push_back(
        Json::array({part.row, part.own.begin, part.own.end, part.crc64, part.contribution}));
  return Json::array({std::move(damages), std::move(parts)});
}

ChunkFindings chunk_findings_from_json(const Json& json, const ShardReader& shard,
                                       const Catalog& catalog, std::string_view where) {
  return Decoder(shard, catalog, where).decode(json);
}

}  // namespace unishard::tools
