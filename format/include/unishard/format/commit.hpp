#pragma once
// Commits a checkpoint so that after a crash at any point a reader sees either only the older
// checkpoints or also the complete new one. commit.cpp describes the protocol. The caller provides
// the collectives: all ranks must agree between the steps, and only rank 0 has a SaveTransaction.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/output_lock.hpp"
#include "unishard/format/staging_names.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace unishard {

/// The steps, numbered as in commit.cpp. Each is reported just before it is carried out.
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
  std::uint64_t chunk_bytes = kChunkBytes;  ///< chunk size with which the shards were written
  std::optional<std::string> identity{};    ///< identity that the shards must combine to, if known
  bool move_latest = true;
  /// Allow to replace an existing UniShard checkpoint of the same tag.
  bool replace = true;
  std::uint32_t keep_last = 0;  ///< number of complete checkpoints to keep; 0 keeps all
  /// Number that the run reserved when it started the save, from next_commit_number(), because its
  /// saves overlap; 0: the next one when the transaction begins.
  std::uint64_t commit_number = 0;
  /// Called before each step. Tests use it to fail, or to kill the process, at a step.
  std::function<void(CommitStep)> on_step{};
  /// Receives one sentence for each failure after the commit. Must not throw.
  std::function<void(const std::string&)> warn{};
};

/// Returns the staging folder of a save: `<folder>/<tag>.partial-<save_id>`.
Path staging_folder(const Path& folder, std::string_view tag, const std::string& save_id);

/// Throws AlreadyExists when `<folder>/<tag>` exists, unless it is a UniShard checkpoint and
/// `may_replace` is true.
void require_replaceable(Storage& storage, const Path& folder, std::string_view tag,
                         bool may_replace = true);

/// Throws AlreadyExists when `folder` is or lies in a UniShard checkpoint: a tag there would be
/// hidden by it, and go with it when it is replaced or removed.
void require_no_checkpoint_around(Storage& storage, const Path& folder);

/// Throws AlreadyExists when `latest` in `folder` names something that UniShard did not write,
/// because another program resumes from it, or holds a text that is not the name of a checkpoint. A
/// damaged UniShard checkpoint counts as UniShard's own, and so does a blank file.
void require_own_latest(Storage& storage, const Path& folder);

/// Moves the file `latest`, or the file with that role in another format, to a new text. The
/// constructor locks the file and writes the text to a file beside it; commit() renames that file.
/// Construct it before the tag is published, so that a tag whose `latest` cannot be written is not
/// published. Without commit() the file is unchanged. Not thread-safe.
class LatestMove {
 public:
  /// Lifetime: `storage` must outlive this object.
  /// Throws: Busy when another writer holds the lock for a minute; what writing a file throws.
  LatestMove(Storage& storage, const Path& file, std::string_view text);

  /// Gives the text its name, as StagedText::commit() does.
  void commit();

 private:
  const OutputLock lock_;
  StagedText staged_;
};

/// Rank 0's part of one save. It locks the name `<folder>/<tag>` against other writers until it is
/// destroyed. The destructor removes the staging folder unless publish() has succeeded. Not
/// thread-safe.
/// Lifetime: `storage` must outlive this object.
class SaveTransaction {
 public:
  /// Creates `folder` and the staging folder. `save_id` comes from new_save_id(). Removes staging
  /// folders that dead writers of the tag left; while `folder` has no committed checkpoint they
  /// stay until publish().
  /// Throws: InvalidArgument when validate_tag() refuses the tag; AlreadyExists as
  /// require_replaceable() and require_no_checkpoint_around() do, and when `latest` names what
  /// UniShard did not write (a damaged `latest` is replaced, so that a run goes on); Busy, naming
  /// the other writer, when another process writes the tag.
  SaveTransaction(Storage& storage, Path folder, std::string tag, std::string save_id,
                  CommitOptions options = {});
  /// Takes over a complete staging folder in `folder` that a dead writer has left, and whose
  /// manifest is `manifest`. The destructor keeps it.
  /// Throws: Busy, naming the other writer, when another process writes the tag.
  SaveTransaction(Storage& storage, Path folder, const Manifest& manifest, CommitOptions options);
  ~SaveTransaction();
  SaveTransaction(const SaveTransaction&) = delete;
  SaveTransaction& operator=(const SaveTransaction&) = delete;

  const Path& staging() const { return staging_; }

  /// Carries out steps 4 to 6: reads the tables of every shard back, combines the digests into the
  /// catalog and writes the manifest. Afterwards the staging folder is a complete checkpoint that
  /// CheckpointReader opens. Returns what the manifest says.
  /// Pre: all ranks have returned from ShardWriter::finish().
  /// Throws: Corrupt when a shard is damaged or the shards have another identity than
  /// CommitOptions::identity.
  Manifest complete(Catalog catalog, std::vector<ShardEntry> shards);
  /// Does the same on a further node, whose folder has a part of the shards, with the manifest that
  /// complete() has made elsewhere. Its commit number must be that of CommitOptions.
  void complete_part(const Manifest& manifest);
  /// Makes the destructor keep the staging folder, because the checkpoint may be published on
  /// another node before it is here.
  /// Pre: complete() or complete_part() has returned.
  void keep_staging() { keeps_staging_ = true; }

  /// Carries out steps 7 to 10: publish_tag(), then retain().
  void publish();
  /// Carries out steps 7 to 9: publishes the tag, atomically replacing an older checkpoint of the
  /// tag, and moves `latest` unless a save with a larger commit number is there, which is reported
  /// to CommitOptions::warn.
  /// Throws: AlreadyExists when something that must not be replaced has appeared under the name, or
  /// Busy when another process took the lock over; nothing was published then.
  void publish_tag();
  /// Carries out step 10: removes what was replaced and applies `keep_last`, unless a trained state
  /// of the new checkpoint holds NaN or infinity. What is not done is reported to
  /// CommitOptions::warn.
  void retain();

 private:
  void report(CommitStep step) const;
  void warn(const std::string& sentence) const noexcept;
  bool is_overtaken() const;
  void move_into_place();
  void remove_older() noexcept;
  void write_manifest(const Manifest& manifest);

  Storage& storage_;
  const Path folder_;
  const std::string tag_, save_id_;
  const CommitOptions options_;
  const Path staging_;
  std::vector<Path> made_folders_;  // by the constructor, deepest first
  std::optional<OutputLock> lock_;
  std::uint64_t commit_number_;
  std::string not_finite_;  ///< what a tensor of the new checkpoint holds, empty for none
  bool keeps_staging_ = false;
  bool published_ = false;
};

/// Removes the staging folders `<name>.partial-<id>` in `folder` that dead writers of `name` left.
/// Ignores failures.
/// Pre: the caller holds OutputLock::beside(folder / name).
void remove_dead_staging(Storage& storage, const Path& folder, std::string_view name);

/// A checkpoint that prune() keeps although `keep_last` does not cover it.
struct KeptTag {
  std::string tag;
  std::string reason;       ///< for example "it holds notes.txt, which UniShard did not write"
  bool is_failure = false;  ///< it was to be removed, and could not be
};
struct PruneResult {
  /// Tags that prune() removed, or that plan_prune() would remove.
  std::vector<std::string> removed;
  std::vector<KeptTag> kept;
};

/// Removes all but the newest `keep_last` whole checkpoints: hides each by a rename, then deletes
/// it. The newest is the one that was committed last, whatever its step: a run that went back to an
/// older step saves lower steps than the branch that it left. A checkpoint is whole when
/// CheckpointReader opens it. The following are always kept: the one that `latest` names,
/// `just_saved`, those at which a link in `folder` ends, those whose manifest is missing or whose
/// manifest or tables are damaged, and those with files that UniShard did not write. `keep_last` 0
/// removes none. Also removes what dead writers of any tag and interrupted removals left. What
/// another process removes at the same time counts as removed; what cannot be removed is in `kept`.
/// Throws: Error when `folder` cannot be listed or `latest` cannot be read.
PruneResult prune(Storage& storage, const Path& folder, std::uint32_t keep_last,
                  std::string_view just_saved = {});
/// Returns what prune() would do.
PruneResult plan_prune(Storage& storage, const Path& folder, std::uint32_t keep_last,
                       std::string_view just_saved = {});

}  // namespace unishard
