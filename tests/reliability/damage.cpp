// Damage: bits, sectors and pages of sound checkpoints are changed, one place at a time, and
// `verify --deep --all` must find it and name the file; where a byte of a tensor is hit, the tensor
// and a range of elements that holds it.
//
//   reliability_damage [--long] [--seed N] [--count N] [KIND OF CHECKPOINT...]
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"

#include "campaign.hpp"
#include "make_checkpoint.hpp"
#include "recording_storage.hpp"
#include "workflows/verify/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <random>

namespace unishard::test {
namespace {

const Path kFolder = "/c";

/// Bytes of a file that hold elements of a tensor.
struct Payload {
  std::uint64_t begin = 0, end = 0;
  std::string tensor = {};
  ElementRange range = {};
  std::uint64_t element_bytes = 1;
  bool is_encoded = false;  ///< then every byte stands for all of the range
};

struct Target {
  Path path;
  InodePtr inode;
  std::vector<Payload> payload = {};
};

struct Checkpoint {
  std::string name;
  RecordingStorage storage;
  std::vector<Target> files = {};
};

/// Where the elements of a contiguous shard lie.
void add_payload(const CheckpointReader& reader, const ShardReader& shard, Target& target) {
  for (const IndexRow& row : shard.rows()) {
    if (row.data_set == kDerivedDataSet) continue;
    const DataSetEntry& set = shard.entry().data_sets[row.data_set];
    if (set.compressed) continue;
    const std::uint64_t width = size_of(set.dtype);
    const std::uint64_t begin = set.offset + row.element_offset * width;
    target.payload.push_back({begin, begin + row.range.size() * width,
                              reader.catalog().tensors[row.tensor].label(), row.range, width});
  }
}

/// Where the chunks of a compressed shard lie: damage to one is damage to a part of some tensor.
void add_chunks(const ShardReader& shard, Target& target) {
  for (std::size_t i = 0; i < shard.entry().data_sets.size(); ++i) {
    if (!shard.entry().data_sets[i].compressed) continue;
    for (const ChunkRow& chunk : shard.chunks(i)) {
      if (chunk.file != 0) continue;
      target.payload.push_back({.begin = chunk.file_offset,
                                .end = chunk.file_offset + chunk.stored_bytes,
                                .is_encoded = true});
    }
  }
}

void add_files(Checkpoint& checkpoint) {
  RecordingStorage& storage = checkpoint.storage;
  checkpoint.files.push_back({kFolder / kLatestFile, storage.at(kFolder / kLatestFile)});
  for (const TagEntry& tag : list_tags(storage, kFolder)) {
    const CheckpointReader reader(storage, kFolder / tag.tag);
    const Path manifest = kFolder / tag.tag / kManifestFile;
    checkpoint.files.push_back({manifest, storage.at(manifest)});
    for (const auto& shard : reader.shards()) {
      Target target{shard->path(), storage.at(shard->path())};
      add_payload(reader, *shard, target);
      add_chunks(*shard, target);
      checkpoint.files.push_back(std::move(target));
    }
  }
}

std::unique_ptr<Checkpoint> make(const std::string& name, const CheckpointSpec& spec,
                                 const std::string& changed = {}) {
  auto checkpoint = std::make_unique<Checkpoint>();
  checkpoint->name = name;
  write_example(kFolder, spec, checkpoint->storage);
  if (!changed.empty()) {
    CheckpointSpec next = spec;
    next.base = kFolder / spec.tag;
    next.tag = "next";
    next.changed = changed;
    write_example(kFolder, next, checkpoint->storage);
  }
  add_files(*checkpoint);
  return checkpoint;
}

std::vector<std::unique_ptr<Checkpoint>> all_checkpoints() {
  const CheckpointSpec plain{.world_size = 2, .layers = 1};
  CheckpointSpec bf16 = plain, zstd = plain;
  bf16.bf16 = true;
  bf16.stage = 3;
  zstd.compression = kZstd;
  std::vector<std::unique_ptr<Checkpoint>> out;
  out.push_back(make("plain", plain));
  out.push_back(make("bf16", bf16));
  out.push_back(make("zstd", zstd));
  out.push_back(make("shared", plain, "ln_f.weight"));
  out.push_back(make("shared-zstd", zstd, "ln_f.weight"));
  return out;
}

/// Draws one change. Its bytes may come out as they were.
class Damager {
 public:
  explicit Damager(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t end) { return random_() % end; }

  /// Returns what was done, in words.
  std::string damage(std::string& bytes) {
    switch (below(8)) {
      case 0:
      case 1:
      case 2:
        return flip(bytes, 1);
      case 3:
        return flip(bytes, 1 + below(16));
      case 4:
        return truncate(bytes);
      case 5:
        return zero_block(bytes);
      case 6:
        return swap_blocks(bytes);
      default:
        return copy_block(bytes);
    }
  }

 private:
  std::string flip(std::string& bytes, std::uint64_t count) {
    std::uint64_t last = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      last = below(bytes.size());
      bytes[last] = static_cast<char>(bytes[last] ^ (1 << below(8)));
    }
    return fmt::format("{} bits flipped, the last in byte {}", count, last);
  }
  std::string truncate(std::string& bytes) {
    bytes.resize(below(bytes.size()));
    return fmt::format("cut off at {}", bytes.size());
  }

  struct Block {
    std::size_t begin = 0, bytes = 0;
  };
  std::size_t block_bytes() { return below(2) == 0 ? 512 : 4096; }
  Block block(const std::string& bytes, std::size_t size) {
    const std::size_t begin = below(bytes.size() / size + 1) * size;
    return {begin, begin < bytes.size() ? std::min(size, bytes.size() - begin) : 0};
  }
  std::string zero_block(std::string& bytes) {
    const Block zeroed = block(bytes, block_bytes());
    std::memset(bytes.data() + zeroed.begin, 0, zeroed.bytes);
    return fmt::format("bytes {} +{} zeroed", zeroed.begin, zeroed.bytes);
  }
  std::string swap_blocks(std::string& bytes) {
    const std::size_t size = block_bytes();
    const Block a = block(bytes, size), b = block(bytes, size);
    const std::size_t common = std::min(a.bytes, b.bytes);
    if (a.begin != b.begin)
      std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(a.begin),
                       bytes.begin() + static_cast<std::ptrdiff_t>(a.begin + common),
                       bytes.begin() + static_cast<std::ptrdiff_t>(b.begin));
    return fmt::format("bytes {} and {} +{} swapped", a.begin, b.begin, common);
  }
  /// As a write that went to a wrong place.
  std::string copy_block(std::string& bytes) {
    const std::size_t size = block_bytes();
    const Block a = block(bytes, size), b = block(bytes, size);
    const std::size_t common = std::min(a.bytes, b.bytes);
    std::memmove(bytes.data() + b.begin, bytes.data() + a.begin, common);
    return fmt::format("bytes {} +{} written over {}", a.begin, common, b.begin);
  }

  std::mt19937_64 random_;
};

/// What is wrong with the report of a file that was `before` and is `after`; empty: nothing.
std::string wrong_with(const tools::VerifyReport& report, const Target& target,
                       const std::string& before, const std::string& after) {
  if (report.is_clean()) return "not found";
  const std::string name = target.path.filename().string();
  const auto about = [&](const tools::Finding& finding) {
    return finding.path == target.path || finding.message.find(name) != std::string::npos ||
           finding.path.filename().string().starts_with("base-");
  };
  if (std::ranges::none_of(report.findings, about))
    return "the file is not named: " + report.findings.front().message;
  if (after.size() != before.size() || target.payload.empty()) return "";
  const auto first = std::ranges::mismatch(before, after);
  const auto at = static_cast<std::uint64_t>(first.in1 - before.begin());
  const auto hit = std::ranges::find_if(target.payload, [&](const Payload& payload) {
    return payload.begin <= at && at < payload.end;
  });
  if (hit == target.payload.end()) return "";
  const std::uint64_t element =
      hit->is_encoded ? 0 : hit->range.begin + (at - hit->begin) / hit->element_bytes;
  for (const tools::Finding& finding : report.findings) {
    for (const tools::LostRange& lost : finding.lost) {
      if (hit->is_encoded) return "";
      if (lost.tensor == hit->tensor && lost.range.begin <= element && element < lost.range.end)
        return "";
    }
  }
  if (hit->is_encoded) return "no tensor is named";
  return fmt::format("element {} of {} is not named", element, hit->tensor);
}

/// `latest` may end in a line feed or not.
bool says_the_same(const Target& target, const std::string& before, const std::string& after) {
  if (before == after) return true;
  return target.path.filename() == kLatestFile && after + "\n" == before;
}

void damage_once(Checkpoint& checkpoint, Damager& damager, Findings& findings) {
  Target& target = checkpoint.files[damager.below(checkpoint.files.size())];
  const std::shared_ptr<Content> sound = target.inode->content;
  std::string bytes, what;
  do {
    bytes = sound->bytes;
    what = damager.damage(bytes);
  } while (says_the_same(target, sound->bytes, bytes));
  target.inode->content = std::make_shared<Content>(Content{bytes});
  std::string wrong;
  try {
    const auto report = tools::verify(checkpoint.storage, kFolder,
                                      {.all_tags = true, .deep = true, .transfer = {.threads = 1}});
    wrong = wrong_with(report, target, sound->bytes, bytes);
  } catch (const std::exception& error) {
    wrong = fmt::format("verify fails: {}", error.what());
  }
  target.inode->content = sound;
  if (!wrong.empty())
    findings.add(fmt::format("{}: {}: {}: {}", checkpoint.name, target.path.string(), what, wrong));
}

int run(const Campaign& campaign) {
  Findings findings;
  const Stopwatch all;
  constexpr std::uint64_t kLong = 200'000, kShort = 800;  // of each kind
  const std::uint64_t count =
      campaign.count != 0 ? campaign.count : (campaign.is_long ? kLong : kShort);
  std::uint64_t total = 0;
  for (const auto& checkpoint : all_checkpoints()) {
    if (!campaign.wants(checkpoint->name)) continue;
    const Stopwatch watch;
    const std::uint64_t before = findings.count();
    Damager damager(campaign.seed);
    for (std::uint64_t i = 0; i < count; ++i) damage_once(*checkpoint, damager, findings);
    total += count;
    print_row("damage: " + checkpoint->name, count, "damaged files", findings.count() - before,
              watch.seconds(), campaign.seed);
  }
  print_row("damage: all", total, "damaged files", findings.count(), all.seconds(), campaign.seed);
  return findings.count() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace unishard::test

int main(int argc, char** argv) {
  return unishard::test::run(unishard::test::Campaign::from_arguments(argc, argv));
}
