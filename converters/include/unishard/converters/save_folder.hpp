#pragma once
// Checks of the folder that a run saves to and resumes from, before its first step. No function is
// collective: one rank calls them and informs the others.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace unishard::converters {

/// Lock file of the run that saves to a folder. No tag's own lock has this name.
inline constexpr std::string_view kTrainingLockFile = ".training-lock";

/// Creates `folder`, then writes and removes a small file in it.
/// Throws: what raise_errno() throws when the folder cannot be written to.
void require_writable(Storage& storage, const Path& folder);

/// Throws AlreadyExists when `folder` is or contains another program's checkpoint, because saves
/// would mix with it, or lies in a UniShard checkpoint. Throws InvalidArgument when `folder` is a
/// single UniShard checkpoint instead of a folder of checkpoints.
void require_own_folder(Storage& storage, const Path& folder);

/// Does the same for one checkpoint, `folder`/`name`, whose save touches nothing beside it. The
/// files of a model in `folder` do no harm then: only a checkpoint of another program that has
/// `folder` for itself, or that `folder`/`name` is.
void require_own_place(Storage& storage, const Path& folder, const std::string& name);

/// The tags that a run will save: `prefix` followed by a step, for `last` and for every multiple of
/// `interval` (0: none) after `first` and up to `last`.
struct PlannedTags {
  std::string prefix;
  std::int64_t first = 0, last = 0, interval = 0;
};
/// Throws AlreadyExists when something in `folder` has the name of a planned tag and is not a
/// UniShard checkpoint, or is one and `may_replace` is false, or when `latest` names something that
/// UniShard did not write.
void require_free_names(Storage& storage, const Path& folder, const PlannedTags& planned,
                        bool may_replace);

/// What a run does first in the folder that it saves to.
struct ResumeDecision {
  enum class Action : std::uint8_t { Load, StartFresh };
  Action action = Action::Load;
  /// Fresh start in a folder with other content, none of which may be replaced.
  bool beside = false;
  /// Whole checkpoints are among it, which keep_last would remove.
  bool beside_whole = false;
  std::string explanation;  ///< one line that explains a fresh start
};
/// Decides for a fresh start when the folder is missing, contains nothing that looks like a
/// checkpoint, or contains only interrupted saves. With `fresh_beside`, a folder without a whole
/// checkpoint is a fresh start too. Shards are checked only with `fresh_beside`.
/// Throws: NotFound, Corrupt or AlreadyExists, naming what is there and the command that shows
/// more, when something is there that cannot be loaded.
ResumeDecision decide_resume(Storage& storage, const Path& folder, bool fresh_beside);

/// The decision of a run that was not asked to resume: a fresh start, with `fresh_beside` beside
/// whatever the folder contains. The only tag of a folder whose `latest` was never written, because
/// the save was killed just then, counts as an interrupted save.
/// Throws: AlreadyExists when the folder contains a checkpoint that the run would replace or remove
/// sooner or later, naming it; what decide_resume() throws.
ResumeDecision decide_start(Storage& storage, const Path& folder, bool fresh_beside);

/// Returns a hint that says how to resume from the newest whole checkpoints beside `damaged`, a
/// checkpoint's folder; empty where there is none. Whole are those whose manifest and tables are.
std::string other_checkpoints(Storage& storage, const Path& damaged);

}  // namespace unishard::converters
