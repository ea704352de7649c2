#pragma once
// Saving, step by step, so that a crash at any point leaves the old checkpoints or the old ones and
// the new one, never a mixture. commit.cpp opens with the protocol. The caller brings the
// collectives: all ranks must agree between the steps, and rank 0 alone has the SaveTransaction.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/output_lock.hpp"
#include "unishard/format/staging_names.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace unishard {

/// Numbered as in commit.cpp; reported just before the step is carried out.
enum class CommitStep : std::uint8_t {
  CreateStaging = 1,
  WriteShard,
  SyncShard,
  SyncStaging,
  WriteManifest,
  SyncManifest,
  PublishTag,
  SyncFolder,
  MoveLatest,
  Retain,
};
inline constexpr int kCommitStepCount = 10;

struct CommitOptions {
  std::uint64_t chunk_bytes = kChunkBytes;  ///< that the shards were written with
  std::optional<std::string> identity{};    ///< that what was written must arrive at, where known
  bool move_latest = true;
  bool replace = true;          ///< an existing UniShard checkpoint of the same tag
  std::uint32_t keep_last = 0;  ///< complete checkpoints to keep; 0 keeps all
  /// Called before each step; tests use it to fail or to kill the process there.
  std::function<void(CommitStep)> on_step{};
  /// Receives a sentence for each thing that went wrong after the commit. Must not throw.
  std::function<void(const std::string&)> warn{};
};

/// The staging folder of a save: `<folder>/<tag>.partial-<save_id>`.
Path staging_folder(const Path& folder, std::string_view tag, const std::string& save_id);

/// Throws AlreadyExists when something is called `<folder>/<tag>` and a save may not replace it:
/// anything but a folder with a UniShard manifest, and such a folder too unless `may_replace`.
void require_replaceable(Storage& storage, const Path& folder, std::string_view tag,
                         bool may_replace = true);

/// Throws AlreadyExists when `latest` in `folder` names what is not UniShard's: another program
/// resumes from it. A damaged checkpoint of UniShard's is still its own.
void require_own_latest(Storage& storage, const Path& folder);

/// Moves the file `latest` (of another format: by whatever name) to a new text. The constructor
/// locks the file and writes the text beside it; commit() gives it the name. Construct it before
/// the tag is published: a tag whose `latest` cannot be written is then not published at all.
/// Without commit() the file keeps what it held. Not thread-safe.
class LatestMove {
 public:
  /// Lifetime: `storage` outlives the object. Throws Busy when another writer has the lock for a
  /// minute, and what writing a file throws.
  LatestMove(Storage& storage, Path file, std::string_view text);
  ~LatestMove();
  LatestMove(const LatestMove&) = delete;
  LatestMove& operator=(const LatestMove&) = delete;

  void commit();

 private:
  Storage& storage_;
  const Path file_;
  const OutputLock lock_;
  Path staged_;  ///< empty once it has the name
};

/// Rank 0's part of one save. Owns the name `<folder>/<tag>` against other writers until it is
/// destroyed, which removes the staging folder unless publish() has succeeded.
/// Lifetime: `storage` outlives it. Not thread-safe.
class SaveTransaction {
 public:
  /// Creates `folder` and the staging folder. Staging folders of dead writers are removed, but
  /// while no checkpoint was ever committed in `folder` they stay until publish().
  /// `save_id`: from new_save_id().
  /// Throws: InvalidArgument for a tag that validate_tag() refuses; AlreadyExists as
  /// require_replaceable() does; Busy, naming the other writer, when the tag is being written.
  SaveTransaction(Storage& storage, Path folder, std::string tag, std::string save_id,
                  CommitOptions options = {});
  ~SaveTransaction();
  SaveTransaction(const SaveTransaction&) = delete;
  SaveTransaction& operator=(const SaveTransaction&) = delete;

  const Path& staging() const { return staging_; }

  /// Steps 4 to 6, after all ranks have finished their shards (ShardWriter::finish()): reads every
  /// shard's tables back, combines the digests into the catalog and writes the manifest. The
  /// staging folder is then a whole checkpoint that CheckpointReader opens.
  /// Throws Corrupt where the shards have another identity than the options ask for.
  const Manifest& complete(Catalog catalog, std::vector<ShardEntry> shards);

  /// Steps 7 to 10: publishes the tag, replacing an older checkpoint of the tag atomically, moves
  /// `latest` and applies `keep_last`. Once the tag is published, what fails in step 10 is
  /// reported to CommitOptions::warn and fails nothing.
  /// Throws AlreadyExists when something that must not be replaced has appeared under the name,
  /// and Busy when another process took the lock over; then nothing was published.
  void publish();

 private:
  void report(CommitStep step) const;
  void warn(const std::string& sentence) const noexcept;
  void move_into_place();
  void retain() noexcept;

  Storage& storage_;
  const Path folder_;
  const std::string tag_, save_id_;
  const CommitOptions options_;
  const Path staging_;
  std::optional<OutputLock> lock_;
  Manifest manifest_;
  bool published_ = false;
};

/// Removes `<name>.partial-<id>` in `folder`, which dead writers of `name` left. What cannot be
/// removed stays. Pre: the caller has OutputLock::beside(folder / name).
void remove_dead_staging(Storage& storage, const Path& folder, std::string_view name);

/// A checkpoint that prune() leaves although `keep_last` does not cover it.
struct KeptTag {
  std::string tag;
  std::string reason;  ///< "it holds notes.txt, which UniShard did not write"
};
struct PruneResult {
  std::vector<std::string> removed;  ///< by plan_prune(): that would be removed
  std::vector<KeptTag> kept;
};

/// Hides (renames) and then deletes all but the newest `keep_last` whole checkpoints. The newest is
/// the one that was committed last, whatever its step: a run that went back to an older step saves
/// lower ones than the branch that it left. A checkpoint is whole when CheckpointReader opens it.
/// Kept in any case: the one that `latest` names, `just_saved`, those whose manifest is missing or
/// cannot be read, and those that hold files that UniShard did not write.
/// `keep_last` 0 removes none. Also clears what dead writers and interrupted removals left.
/// What another process removes at the same time counts as done; what cannot be removed is in
/// `kept`. Throws only when `folder` cannot be listed or `latest` cannot be read.
PruneResult prune(Storage& storage, const Path& folder, std::uint32_t keep_last,
                  std::string_view just_saved = {});
/// What prune() would do, without doing it.
PruneResult plan_prune(Storage& storage, const Path& folder, std::uint32_t keep_last,
                       std::string_view just_saved = {});

}  // namespace unishard
