// One pass over the bytes. A chunk is read and checked against its own checksum; then the parts of
// fragments that lie in it are digested too, because fragments and chunks are cut differently.
// CRC-64 combines, so the parts of a fragment give its digest when all chunks were seen, in
// whatever order.
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include "lib/verify_tag.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <mutex>

namespace unishard::tools {
namespace {

/// A part of a fragment that lay in a sound chunk.
struct Part {
  std::uint32_t row = 0;
  ElementRange range;  ///< of the tensor
  std::uint64_t crc64 = 0;
};

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

  std::size_t chunk_count() const { return chunks_.size(); }

  /// Neighbouring chunks of one data set that are read at once: at most `chunks` of them.
  struct Run {
    std::size_t first = 0, count = 0;
  };
  std::vector<Run> runs(std::size_t chunks) const {
    std::vector<Run> runs;
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      const bool continues =
          i > 0 && chunks_[i].data_set == chunks_[i - 1].data_set && runs.back().count < chunks;
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
    std::ranges::move(damages, std::back_inserter(damages_));
    return bytes;
  }

  /// After all chunks: appends what was found, in file order.
  void report(std::vector<Finding>& findings) {
    std::sort(damages_.begin(), damages_.end(),
              [](const auto& a, const auto& b) { return a.file_offset < b.file_offset; });
    for (const ShardReader::Damage& damage : damages_) findings.push_back(describe(damage));
    check_fragments(findings);
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
      return row.element_offset + row.range.size() <= here.begin;
    });
    std::vector<Part> parts;
    for (; at != order.end() && shard_.rows()[*at].element_offset < here.end; ++at) {
      const IndexRow& row = shard_.rows()[*at];
      const ElementRange common =
          intersect(here, {row.element_offset, row.element_offset + row.range.size()});
      const std::uint64_t first = row.range.begin + (common.begin - row.element_offset);
      parts.push_back({*at,
                       {first, first + common.size()},
                       crc64(bytes.subspan((common.begin - here.begin) * item_bytes,
                                           common.size() * item_bytes))});
    }
    const std::lock_guard lock(mutex_);
    parts_.insert(parts_.end(), parts.begin(), parts.end());
  }

  Finding describe(const ShardReader::Damage& damage) const {
    Finding finding{.code = "chunk-damaged",
                    .path = damage.file,
                    .message = fmt::format("data set {}: the bytes do not match their checksum",
                                           damage.data_set),
                    .hint = "use another checkpoint, or a copy of this file",
                    .bytes = Finding::Bytes{damage.file_offset, damage.file_offset + damage.bytes},
                    .lost = {}};
    for (const Fragment& part : damage.lost) {
      finding.lost.push_back({catalog_.tensors[part.tensor].label(), part.range});
    }
    if (damage.lost.empty()) finding.message += " (padding only: no tensor is affected)";
    return finding;
  }

  void check_fragments(std::vector<Finding>& findings) {
    std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) {
      return std::pair(a.row, a.range) < std::pair(b.row, b.range);
    });
    for (auto part = parts_.begin(); part != parts_.end();) {
      const std::uint32_t number = part->row;
      const IndexRow& row = shard_.rows()[number];
      const TensorInfo& tensor = catalog_.tensors[row.tensor];
      std::uint64_t digest = 0;
      std::uint64_t elements = 0;
      for (; part != parts_.end() && part->row == number; ++part) {
        digest = crc64_combine(digest, part->crc64, part->range.size() * size_of(tensor.dtype));
        elements += part->range.size();
      }
      if (elements != row.range.size() || digest == row.crc64) continue;  // damaged: said already
      findings.push_back({.code = "fragment-digest-differs",
                          .path = shard_.path(),
                          .message = fmt::format("{}: its bytes have digest {}, the index says {}",
                                                 tensor.label(), hex64(digest), hex64(row.crc64)),
                          .hint = "use another checkpoint, or a copy of this file",
                          .bytes = {},
                          .lost = {{tensor.label(), row.range}}});
    }
  }

  const ShardReader& shard_;
  const Catalog& catalog_;
  std::vector<std::vector<std::uint32_t>> rows_;  ///< per data set, by offset
  std::vector<Chunk> chunks_;
  std::mutex mutex_;  ///< guards the rest
  std::vector<Part> parts_;
  std::vector<ShardReader::Damage> damages_;
};

/// Buffers must hold a chunk, and are best some; threads are given up rather than memory.
TransferOptions with_buffers(TransferOptions options, std::uint64_t chunk_bytes) {
  constexpr std::uint64_t kBest = std::uint64_t{4} << 20;
  const std::uint64_t total = options.buffer_bytes * options.threads;
  const std::uint64_t wanted = std::max(chunk_bytes, std::min(options.buffer_bytes, kBest));
  options.buffer_bytes = wanted / chunk_bytes * chunk_bytes;
  options.threads = static_cast<unsigned>(
      std::clamp<std::uint64_t>(total / options.buffer_bytes, 1, options.threads));
  return options;
}

}  // namespace

void verify_payload(const Manifest& manifest,
                    const std::vector<std::unique_ptr<ShardReader>>& shards,
                    const TransferOptions& options, CheckedTag& checked, VerifyReport& report) {
  const TransferOptions transfer = with_buffers(options, manifest.chunk_bytes);
  for (const auto& shard : shards) {
    if (!shard) continue;
    ShardCheck check(*shard, manifest.catalog);
    const auto runs = check.runs(transfer.buffer_bytes / manifest.chunk_bytes);
    run_bounded(runs.size(), transfer, [&](std::size_t index, std::span<std::byte> buffer) {
      return check.check(runs[index], buffer);
    });
    check.report(report.findings);
    checked.chunks_checked += check.chunk_count();
    for (const DataSetEntry& set : shard->entry().data_sets) {
      checked.bytes_checked += set.padded_bytes();
    }
  }
}

void verify_derived(const CheckpointReader& checkpoint, const TransferOptions& options,
                    CheckedTag& checked, VerifyReport& report) {
  std::vector<std::size_t> derived;
  const auto& tensors = checkpoint.catalog().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].derived) derived.push_back(i);
  }
  std::mutex mutex;
  run_bounded(derived.size(), options, [&](std::size_t index, std::span<std::byte> buffer) {
    const TensorInfo& tensor = tensors[derived[index]];
    const std::uint64_t step = buffer.size() / size_of(tensor.dtype);
    std::uint64_t digest = 0;
    for (std::uint64_t begin = 0; begin < tensor.elements(); begin += step) {
      const ElementRange range{begin, std::min(begin + step, tensor.elements())};
      const auto bytes = buffer.first(range.size() * size_of(tensor.dtype));
      checkpoint.read(derived[index], range, bytes);
      digest = crc64(bytes, digest);
    }
    const std::lock_guard lock(mutex);
    checked.bytes_checked += tensor.bytes();
    if (digest != tensor.crc64) {
      report.findings.push_back(
          {.code = "derived-digest-differs",
           .path = checkpoint.folder(),
           .message = fmt::format("{}: rounding the fp32 state gives another digest than was saved",
                                  tensor.label()),
           .hint = {},
           .bytes = {},
           .lost = {{tensor.label(), {0, tensor.elements()}}}});
    }
    return tensor.bytes();
  });
}

}  // namespace unishard::tools
