#pragma once
// The part that synchronous and asynchronous saves share: begin() during the step, finish() at once
// or later. Every phase ends with agree(), so that no rank continues, or throws, without the
// others. A Save owns everything it needs except the storage, so training may continue between the
// phases. Not thread-safe.
#include "unishard/format/catalog.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/overlaid_storage.hpp"
#include "unishard/format/partition.hpp"
#include "unishard/format/shard_base.hpp"
#include "unishard/trainer/checkpointing.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/save_handle.hpp"

#include "comm/nodes.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

/// Threads of one rank that write: one digests while another waits for the disk.
inline constexpr unsigned kWriters = 4;

/// Writes all of fragments()[index] to `writer`. Called from several threads.
using GiveFragment = std::function<void(ShardWriter& writer, std::size_t index)>;

class Save {
 public:
  /// Plans the save of rank `rank` of the catalog's world size, in the folder of its node.
  /// Lifetime: the storage in `options` must outlive this object.
  Save(Catalog catalog, std::uint32_t rank, Nodes nodes, const SaveRequest& request,
       const EngineOptions& options);

  const Catalog& catalog() const { return catalog_; }
  /// Adds a sentence to the warnings of the report.
  void warn(const std::string& sentence) { warnings_.push_back(sentence); }
  /// Returns what this rank writes.
  const std::vector<Fragment>& fragments() const { return fragments_; }

  /// Agrees on a save id and on the checkpoint to share chunks with; the first rank of each node
  /// creates the staging folder. Collective.
  void begin(Communicator& communicator);
  /// Writes this rank's shard and commits. The report has no times. Collective.
  /// Pre: begin() has returned.
  SaveReport finish(Communicator& communicator, const GiveFragment& give);
  /// Ends the save without finish(): removes what begin() created. Not collective.
  void abandon() noexcept;

 private:
  bool is_first() const { return rank_ == 0; }
  bool is_leader() const { return nodes_.is_leader(rank_); }
  void reserve_commit_number(Communicator& communicator);
  std::shared_ptr<const ShardBase> open_base() const;
  void write_shard(Communicator& communicator, const GiveFragment& give);
  void commit(Communicator& communicator);
  std::vector<ShardEntry> gather_entries(Communicator& communicator);
  void collect_tables(Communicator& communicator, const std::vector<ShardEntry>& shards);
  void publish_on_nodes(Communicator& communicator, const std::string& manifest);
  void gather_warnings(Communicator& communicator);
  void report(CommitStep step) const;

  Catalog catalog_;
  std::uint32_t rank_;
  Nodes nodes_;
  std::vector<Fragment> fragments_;
  Storage& storage_;
  OverlaidStorage all_nodes_;  ///< on rank 0, with the tables of the other nodes' shards
  Path folder_;
  std::string tag_;
  CommitOptions commit_;
  Compression compression_;
  bool incremental_;
  std::string base_tag_;  ///< empty: no checkpoint to share chunks with
  std::string save_id_, entry_, identity_;
  std::optional<SaveTransaction> transaction_;  ///< on leaders, from begin() on
  std::vector<std::string> warnings_;
  std::uint64_t written_bytes_ = 0;  ///< by all ranks
};

}  // namespace unishard::trainer::detail
