// A native checkpoint is written shard by shard. A shard's file is created when its first bytes
// arrive and finished by the call that brings its last ones, so few files are open at a time.
// seal() writes the empty shards; complete() and publish() follow the protocol of commit.hpp. If
// the catalog came with digests, the new manifest must have the same identity before it is
// published.
#include "unishard/converters/sink.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/shard_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace unishard::converters {
namespace {

struct RankShard {
  bool is_ours = false;
  std::size_t first_fragment = 0;  ///< index in Sink::fragments()
  std::size_t fragment_count = 0;
  std::atomic<std::uint64_t> missing_elements{0};
  std::mutex mutex;  ///< guards the creation of `writer`
  std::unique_ptr<ShardWriter> writer;
  ShardEntry entry;
};

class NativeSink final : public Sink {
 public:
  NativeSink(Storage& storage, const Path& folder, const std::string& tag, Catalog catalog,
             const Compression& compression, const WorkSplit& share, SideFiles side_files,
             bool moves_latest)
      : storage_(storage),
        catalog_(std::move(catalog)),
        options_{chunk_bytes_for(catalog_, compression), compression},
        expected_identity_(identity(catalog_)),
        save_id_(share.id.empty() ? new_save_id() : share.id),
        staging_(staging_folder(folder, tag, save_id_)),
        side_files_(std::move(side_files)),
        ranks_(catalog_.world_size) {
    for (TensorInfo& tensor : catalog_.tensors) {
      tensor.crc64.reset();
      tensor.stats.reset();
    }
    plan_ranks(share);
    if (share.rank != 0) return;
    save_.emplace(storage_, folder, tag, save_id_,
                  CommitOptions{.chunk_bytes = options_.chunk_bytes,
                                .identity = expected_identity_,
                                .move_latest = moves_latest,
                                .replace = false});
  }

  const std::vector<Fragment>& fragments() const override { return fragments_; }

  void write(std::size_t fragment, ElementRange range, std::span<const std::byte> bytes) override {
    RankShard& rank = ranks_[rank_of_.at(fragment)];
    writer(rank).write(fragment - rank.first_fragment, range, bytes);
    if (rank.missing_elements.fetch_sub(range.size()) == range.size()) finish(rank);
  }

  std::string seal() override {
    Json entries = Json::array();
    for (RankShard& rank : ranks_) {
      if (!rank.is_ours) continue;
      check_stop();
      if (rank.entry.file.empty()) {
        writer(rank);
        finish(rank);  // throws when an element was not written
      }
      entries.push_back(to_json(rank.entry));
    }
    fragments_ = {};  // large for many small tensors; nothing is written any more
    rank_of_ = {};
    return entries.dump();
  }

  Path complete(std::span<const std::string> seals) override {
    std::vector<ShardEntry> entries;
    for (const std::string& seal : seals) {
      for (const Json& entry : parse_json(seal, "the shards of a process"))
        entries.push_back(shard_entry_from_json(entry, "the shards of a process"));
    }
    std::ranges::sort(entries, {}, &ShardEntry::rank);
    bool each_once = entries.size() == ranks_.size();
    for (std::size_t rank = 0; rank < entries.size(); ++rank)
      each_once &= entries[rank].rank == rank;
    if (!each_once)
      raise(ErrorCode::Internal,
            fmt::format("{}: not every shard was written by one process", staging_.string()));
    for (const auto& [name, content] : side_files_)
      replace_text(storage_, staging_ / name, content);
    save_->complete(std::exchange(catalog_, {}), std::move(entries));
    return staging_;
  }
  void publish() override { save_->publish(); }

 private:
  void plan_ranks(const WorkSplit& share) {
    const ShardPlans plans(catalog_);
    std::vector<std::uint64_t> bytes;
    for (std::uint32_t rank = 0; rank < catalog_.world_size; ++rank)
      bytes.push_back(bytes_of(catalog_, plans.shard(rank)));
    const std::vector<bool> ours = owned(bytes, share);
    for (std::uint32_t rank = 0; rank < catalog_.world_size; ++rank) {
      ranks_[rank].is_ours = ours[rank];
      ranks_[rank].first_fragment = fragments_.size();
      if (ours[rank]) add_fragments(plans.shard(rank), rank);
    }
  }

  void add_fragments(std::vector<Fragment> fragments, std::uint32_t rank) {
    RankShard& shard = ranks_[rank];
    shard.fragment_count = fragments.size();
    for (const Fragment& fragment : fragments) shard.missing_elements += fragment.range.size();
    std::ranges::move(fragments, std::back_inserter(fragments_));
    rank_of_.resize(fragments_.size(), rank);
  }

  std::vector<Fragment> fragments_of(const RankShard& rank) const {
    const auto all = std::span(fragments_).subspan(rank.first_fragment, rank.fragment_count);
    return {all.begin(), all.end()};
  }

  ShardWriter& writer(RankShard& rank) {
    const std::lock_guard lock(rank.mutex);
    if (!rank.writer) {
      const auto number = static_cast<std::uint32_t>(&rank - ranks_.data());
      rank.writer = std::make_unique<ShardWriter>(
          storage_, staging_ / shard_file_name(number, catalog_.world_size), save_id_, catalog_,
          number, fragments_of(rank), options_);
    }
    return *rank.writer;
  }

  static void finish(RankShard& rank) {
    rank.entry = rank.writer->finish();
    rank.writer.reset();
  }

  Storage& storage_;
  Catalog catalog_;
  const ShardOptions options_;
  const std::optional<std::string> expected_identity_;
  const std::string save_id_;
  const Path staging_;
  const SideFiles side_files_;
  std::optional<SaveTransaction> save_;  ///< of process 0; before the writers, which go first
  std::vector<RankShard> ranks_;
  std::vector<Fragment> fragments_;
  std::vector<std::uint32_t> rank_of_;  ///< one per fragment
};

}  // namespace

std::unique_ptr<Sink> make_native_sink(Storage& storage, const Path& folder, const std::string& tag,
                                       Catalog catalog, const Compression& compression,
                                       const WorkSplit& share, SideFiles side_files,
                                       bool moves_latest) {
  validate_tag(tag);
  validate(catalog, "the new checkpoint");
  return std::make_unique<NativeSink>(storage, folder, tag, std::move(catalog), compression, share,
                                      std::move(side_files), moves_latest);
}

}  // namespace unishard::converters
