#pragma once
// What every save does, wherever its bytes come from and whichever thread runs it: begin() at the
// step, finish() then or later. Every phase ends in an agreement, so that no rank goes on, or
// leaves by an exception, without the others. One thread at a time. Owns all that it needs but the
// storage, so that training may go on between the phases.
#include "unishard/format/catalog.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/partition.hpp"
#include "unishard/format/shard_base.hpp"
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/engine.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

/// Gives all of fragments()[index] to the writer. Called from several threads.
using GiveFragment = std::function<void(ShardWriter& writer, std::size_t index)>;

class Save {
 public:
  /// `rank` of the catalog's world size.
  Save(Catalog catalog, std::uint32_t rank, const SaveRequest& request,
       const EngineOptions& options);

  const Catalog& catalog() const { return catalog_; }
  /// What this rank writes.
  const std::vector<Fragment>& fragments() const { return fragments_; }

  /// Collective: agrees on a save id and on what to share with, and rank 0 makes the folder that
  /// the shards go to.
  void begin(Communicator& communicator);
  /// Collective, after begin(): writes this rank's shard and commits. The report has no times yet.
  SaveReport finish(Communicator& communicator, const GiveFragment& give);
  /// Instead of finish(): rank 0 removes what begin() made. Not a collective; does not throw.
  void abandon() noexcept;

 private:
  bool is_first() const { return rank_ == 0; }
  std::shared_ptr<const ShardBase> open_base() const;
  void write_shard(Communicator& communicator, const GiveFragment& give);
  void commit(Communicator& communicator);
  void report(CommitStep step) const;

  Catalog catalog_;
  std::uint32_t rank_;
  std::vector<Fragment> fragments_;
  Storage& storage_;
  Path folder_;
  std::string tag_;
  CommitOptions commit_;
  Compression compression_;
  bool incremental_;
  std::string base_tag_;  ///< empty: nothing to share with
  std::string save_id_, entry_, identity_;
  std::optional<SaveTransaction> transaction_;  ///< of rank 0, from begin() on
  std::vector<std::string> warnings_;
  std::uint64_t written_bytes_ = 0;  ///< by all ranks
};

}  // namespace unishard::trainer::detail
