#pragma once
// Saving, step by step, so that a crash at any point leaves the old checkpoints or the old ones and
// the new one, never a mixture. commit.cpp opens with the protocol. The caller brings the
// collectives: between the steps all ranks must agree, and rank 0 alone calls what is marked so.
#include "unishard/format/checkpoint.hpp"

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
  std::uint32_t keep_last = 0;  ///< complete checkpoints to keep; 0 keeps all
  /// Called before each step; tests use it to fail or to kill the process there.
  std::function<void(CommitStep)> on_step{};
};

/// 32 hexadecimal digits from the system's random source.
std::string new_save_id();

/// Rank 0, before anyone writes: creates `<folder>/<tag>.partial-<save_id>` and returns it.
/// Leftovers of interrupted saves of the same tag, and any that are older than a day, are removed.
Path begin_save(Storage& storage, const Path& folder, std::string_view tag,
                const std::string& save_id, const CommitOptions& options = {});

/// The staging folder that begin_save() makes, for the other ranks.
Path staging_folder(const Path& folder, std::string_view tag, const std::string& save_id);

/// Rank 0, after all ranks have finished their shards (ShardWriter::finish): reads every shard's
/// tables back, combines the digests into the catalog, writes the manifest, publishes the tag and
/// moves `latest`. An existing tag of the same name is replaced atomically. Returns the manifest.
/// Throws Corrupt where the shards have another identity than the options ask for.
/// On failure nothing that was there is lost; the staging folder is left for abandon_save().
Manifest commit_save(Storage& storage, const Path& folder, std::string_view tag,
                     const std::string& save_id, Catalog catalog, std::vector<ShardEntry> shards,
                     const CommitOptions& options = {});

/// Rank 0, instead of commit_save(): removes the staging folder. Does not throw.
void abandon_save(Storage& storage, const Path& folder, std::string_view tag,
                  const std::string& save_id) noexcept;

/// Hides (renames) and then deletes all but the newest `keep_last` complete checkpoints, never the
/// one that `latest` names and never the last complete one; returns the removed tags. `keep_last` 0
/// removes none. Also clears what an interrupted removal left.
std::vector<std::string> prune(Storage& storage, const Path& folder, std::uint32_t keep_last);
/// The tags that prune() would remove.
std::vector<std::string> plan_prune(Storage& storage, const Path& folder, std::uint32_t keep_last);

}  // namespace unishard
