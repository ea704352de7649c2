// One pass over the bytes. Each chunk is read and checked against its own checksum. The parts of
// fragments in it are then digested too, because fragments and chunks have different borders.
// CRC-64 combines, so the parts of a fragment give its digest once all chunks were read, in any
// order and by any process.
#include "unishard/format/checked.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/fragment_digest.hpp"

#include "team/shared_digests.hpp"
#include "workflows/verify/chunk_findings.hpp"
#include "workflows/verify/verify_tag.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>

namespace unishard::tools {
namespace {

using Shards = std::vector<std::unique_ptr<ShardReader>>;

class ShardCheck {
 public:
  ShardCheck(const ShardReader& shard, const Catalog& catalog) : shard_(shard), catalog_(catalog) {
    rows_.resize(shard.entry().data_sets.size());
    for (std::uint32_t i = 0; i < shard.rows().size(); ++i) {
      const IndexRow& row = shard.rows()[i];
      if (row.data_set != kDerivedDataSet) rows_[row.data_set].push_back(i);
    }
    for (std::size_t set = 0; set < rows_.size(); ++set) {
      std::sort(rows_[set].begin(), rows_[set].end(), [&](std::uint32_t a, std::uint32_t b) {
        return shard.rows()[a].element_offset < shard.rows()[b].element_offset;
      });
      const std::uint64_t bytes = shard.entry().data_sets[set].padded_bytes();
      for (std::uint64_t at = 0; at < bytes; at += shard.chunk_bytes()) {
        chunks_.push_back({set, at, std::min(shard.chunk_bytes(), bytes - at)});
      }
    }
    if (chunks_.size() != shard.chunk_count()) {
      raise(ErrorCode::Internal, "verify and the shard reader disagree on the number of chunks");
    }
  }

  /// Neighbouring chunks of one data set that are read at once: at most `chunks` of them.
  struct Run {
    std::size_t first = 0, count = 0;
  };
  /// Returns the runs of the chunks that begin in `ours`, when the shard's first one is at byte
  /// `begin`.
  std::vector<Run> runs(std::size_t chunks, std::uint64_t begin, converters::ByteRun ours) const {
    std::vector<Run> runs;
    for (std::size_t i = 0; i < chunks_.size(); begin += chunks_[i++].bytes) {
      if (!ours.contains(begin)) continue;
      const bool continues = !runs.empty() && runs.back().first + runs.back().count == i &&
                             chunks_[i].data_set == chunks_[i - 1].data_set &&
                             runs.back().count < chunks;
      if (continues) {
        ++runs.back().count;
      } else {
        runs.push_back({i, 1});
      }
    }
    return runs;
  }

  /// Thread-safe. Returns the bytes of the chunks.
  std::uint64_t check(Run run, std::span<std::byte> buffer) {
    std::vector<ShardReader::Damage> damages = shard_.check_chunks(run.first, run.count, buffer);
    std::uint64_t bytes = 0;
    auto damage = damages.begin();  // in the order of the chunks
    for (std::size_t i = run.first; i < run.first + run.count; ++i) {
      const Chunk& chunk = chunks_[i];
      if (damage != damages.end() && damage->chunk == i) {
        ++damage;
      } else {
        digest_parts(chunk, buffer.subspan(bytes, chunk.bytes));
      }
      bytes += chunk.bytes;
    }
    const std::lock_guard lock(mutex_);
    std::ranges::move(damages, std::back_inserter(findings_.damages));
    return bytes;
  }

  /// Call it after all runs.
  ChunkFindings take_findings() {
    findings_.condense(shard_, catalog_);
    return std::move(findings_);
  }

 private:
  struct Chunk {
    std::size_t data_set = 0;
    std::uint64_t begin = 0;  ///< byte in the data set
    std::uint64_t bytes = 0;
  };

  void digest_parts(const Chunk& chunk, std::span<const std::byte> bytes) {
    const std::uint64_t item_bytes = size_of(shard_.entry().data_sets[chunk.data_set].dtype);
    const ElementRange here{chunk.begin / item_bytes, (chunk.begin + chunk.bytes) / item_bytes};
    const auto& order = rows_[chunk.data_set];
    auto at = std::partition_point(order.begin(), order.end(), [&](std::uint32_t number) {
      const IndexRow& row = shard_.rows()[number];
      return row.element_offset + row.elements <= here.begin;
    });
    std::vector<ChunkFindings::Part> parts;
    for (; at != order.end() && shard_.rows()[*at].element_offset < here.end; ++at) {
      const IndexRow& row = shard_.rows()[*at];
      const ElementRange common =
          intersect(here, {row.element_offset, row.element_offset + row.elements});
      const ElementRange own{common.begin - row.element_offset, common.end - row.element_offset};
      const auto data =
          bytes.subspan((common.begin - here.begin) * item_bytes, common.size() * item_bytes);
      const FragmentDigest digest =
          row.box == 0
              ? FragmentDigest{crc64(data), 0}
              : digest_elements(shard_.map_of(*at), catalog_.tensors[row.tensor].elements(),
                                item_bytes, own, data);
      parts.push_back({*at, own, digest.crc64, digest.contribution});
    }
    const std::lock_guard lock(mutex_);
    findings_.parts.insert(findings_.parts.end(), parts.begin(), parts.end());
  }

  const ShardReader& shard_;
  const Catalog& catalog_;
  std::vector<std::vector<std::uint32_t>> rows_;  ///< per data set, by offset
  std::vector<Chunk> chunks_;
  std::mutex mutex_;  ///< guards the rest
  ChunkFindings findings_;
};

/// A buffer must hold a chunk and should hold several. When memory is short, the number of threads
/// is reduced. Buffers may be twice as large as for a copy, because nothing is written.
TransferOptions with_buffers(TransferOptions options, std::uint64_t chunk_bytes) {
  constexpr std::uint64_t kBest = std::uint64_t{4} << 20;
  const std::uint64_t total = 2 * options.buffer_bytes * options.threads;
  const std::uint64_t wanted = std::max(chunk_bytes, std::min(2 * options.buffer_bytes, kBest));
  options.buffer_bytes = wanted / chunk_bytes * chunk_bytes;
  options.threads = static_cast<unsigned>(
      std::clamp<std::uint64_t>(total / options.buffer_bytes, 1, options.threads));
  return options;
}

/// Findings of one process in all shards, by shard number.
struct PayloadFindings {
  std::string readable;      ///< one digit per shard: whether it could be opened
  std::uint64_t chunks = 0;  ///< that it read
  std::map<std::size_t, ChunkFindings> shards;
};

std::uint64_t payload_of(const ShardReader& shard) {
  std::uint64_t bytes = 0;
  for (const DataSetEntry& set : shard.entry().data_sets) bytes += set.padded_bytes();
  return bytes;
}

std::string readable(const Shards& shards) {
  std::string digits;
  for (const auto& shard : shards) digits += shard ? '1' : '0';
  return digits;
}

/// Reads this process's chunks: the payloads of the shards are one sequence of bytes, of which each
/// process has a range.
PayloadFindings check_share(const Manifest& manifest, const Shards& shards,
                            const TransferOptions& options, const Team& team) {
  const TransferOptions transfer = with_buffers(options, manifest.chunk_bytes);
  std::uint64_t total = 0;
  for (const auto& shard : shards) total += shard ? payload_of(*shard) : 0;
  const converters::ByteRun ours = converters::owned_run(
      total, manifest.chunk_bytes, {.rank = team.rank(), .size = team.size()});
  PayloadFindings out{.readable = readable(shards), .chunks = 0, .shards = {}};
  transfer.begin("verify", ours.end - ours.begin);
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (!shards[i]) continue;
    const std::uint64_t bytes = payload_of(*shards[i]);
    if (begin < ours.end && ours.begin < begin + bytes) {
      ShardCheck check(*shards[i], manifest.catalog);
      const auto runs = check.runs(transfer.buffer_bytes / manifest.chunk_bytes, begin, ours);
      run_bounded(runs.size(), transfer, [&](std::size_t index, std::span<std::byte> buffer) {
        return check.check(runs[index], buffer);
      });
      for (const auto& run : runs) out.chunks += run.count;
      ChunkFindings found = check.take_findings();
      if (!found.damages.empty() || !found.parts.empty()) out.shards[i] = std::move(found);
    }
    begin += bytes;
  }
  return out;
}

/// {"readable": "111", "chunks": n, "shards": [[number, findings], ...]}
std::string encode(const PayloadFindings& found) {
  Json shards = Json::array();
  for (const auto& [number, findings] : found.shards)
    shards.push_back(Json::array({number, to_json(findings)}));
  return Json{{"readable", found.readable}, {"chunks", found.chunks}, {"shards", std::move(shards)}}
      .dump();
}

void append(const std::string& text, const Manifest& manifest, const Shards& shards,
            PayloadFindings& all) {
  constexpr std::string_view kWhere = "what another process found";
  const Json json = parse_json(text, kWhere);
  if (!json.is_object() || !json.contains("chunks") || !json["chunks"].is_number_unsigned() ||
      !json.contains("shards") || !json["shards"].is_array())
    raise(ErrorCode::Corrupt, fmt::format("{} cannot be read", kWhere));
  if (!json.contains("readable") || json["readable"] != all.readable) {
    raise(ErrorCode::Io, "the processes cannot open the same shards",
          "all of them must see the same files");
  }
  all.chunks = checked_add(all.chunks, json["chunks"].get<std::uint64_t>(), kWhere);
  for (const Json& item : json["shards"]) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_number_unsigned() ||
        item[0].get<std::uint64_t>() >= shards.size() || !shards[item[0].get<std::size_t>()])
      raise(ErrorCode::Corrupt, fmt::format("{} is of other shards than here", kWhere));
    const auto number = item[0].get<std::size_t>();
    all.shards[number].append(
        chunk_findings_from_json(item[1], *shards[number], manifest.catalog, kWhere));
  }
}

}  // namespace

void verify_payload(const Manifest& manifest, const Shards& shards, const TransferOptions& options,
                    Team& team, CheckedTag& checked, VerifyReport& report) {
  const PayloadFindings own = check_share(manifest, shards, options, team);
  PayloadFindings all{.readable = own.readable, .chunks = 0, .shards = {}};
  for (const std::string& text : team.gather(encode(own))) append(text, manifest, shards, all);
  std::uint64_t chunks = 0;
  for (const auto& shard : shards) {
    if (!shard) continue;
    chunks += shard->chunk_count();
    checked.bytes_checked += payload_of(*shard);
  }
  if (all.chunks != chunks) {
    raise(ErrorCode::Internal,
          fmt::format("the processes checked {} chunks, and there are {}", all.chunks, chunks));
  }
  checked.chunks_checked += chunks;
  for (auto& [number, findings] : all.shards)
    findings.report(*shards[number], manifest.catalog, report.findings);
}

void verify_derived(Storage& storage, const Path& folder, const TransferOptions& options,
                    Team& team, CheckedTag& checked, VerifyReport& report) {
  std::unique_ptr<CheckpointReader> checkpoint;
  std::vector<std::size_t> derived;
  std::vector<converters::PartDigest> parts;
  std::string damage;
  try {
    checkpoint = std::make_unique<CheckpointReader>(storage, folder);
    const auto& tensors = checkpoint->catalog().tensors;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].derived) continue;
      derived.push_back(i);
      total += tensors[i].bytes();
    }
    options.begin("derive", total / team.size());
    parts = digest_share(
        {.catalog = &checkpoint->catalog(),
         .tensors = derived,
         .read = [&](std::size_t tensor, ElementRange range,
                     std::span<std::byte> out) { checkpoint->read(tensor, range, out); },
         .boundary =
             [&](std::size_t tensor, std::uint64_t element) {
               return checkpoint->chunk_start(tensor, element);
             }},
        team, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Corrupt && error.code() != ErrorCode::NotFound) throw;
    damage = error.what();
  }
  for (const std::string& text : team.gather(damage)) {
    if (text.empty()) continue;
    if (report.findings.empty()) {  // the folder has changed since the shards were opened
      report.findings.push_back({.code = "shard-missing",
                                 .path = folder,
                                 .message = text,
                                 .hint = {},
                                 .bytes = {},
                                 .lost = {}});
    }
    report.notes.push_back(
        "derived tensors were not rebuilt, since what they derive from is damaged");
    return;
  }
  const auto digests = gather_digests(team, checkpoint->catalog(), parts);
  for (const std::size_t index : derived) {
    const TensorInfo& tensor = checkpoint->catalog().tensors[index];
    checked.bytes_checked += tensor.bytes();
    if (digests[index] == tensor.crc64) continue;
    report.findings.push_back(
        {.code = "derived-digest-differs",
         .path = checkpoint->folder(),
         .message = fmt::format("{}: rounding the fp32 state gives another digest than was saved",
                                tensor.label()),
         .hint = {},
         .bytes = {},
         .lost = {{tensor.label(), ElementRange{0, tensor.elements()}}}});
  }
}

}  // namespace unishard::tools
