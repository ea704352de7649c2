#pragma once
// What a run must know of the folder that it saves to and resumes from, before its first step. None
// of these functions is collective: one rank calls them and tells the others.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace unishard::trainer {

/// The lock of the run that saves to a folder. No tag has this name for its own lock.
inline constexpr std::string_view kTrainingLockFile = ".training-lock";

/// Creates `folder` and writes a small file there, which it removes again. Throws what
/// raise_errno() does when the folder cannot be written to.
void require_writable(Storage& storage, const Path& folder);

/// Throws AlreadyExists when `folder` is another program's checkpoint or holds that program's
/// checkpoints: saves would mix with them. Throws InvalidArgument when `folder` is one checkpoint
/// of UniShard's and not a folder of them.
void require_own_folder(Storage& storage, const Path& folder);

/// The tags that a run is going to save: `prefix` and the steps after `first` up to `last` that
/// are a multiple of `interval` (0: none is), and `last`.
struct PlannedTags {
  std::string prefix;
  std::int64_t first = 0, last = 0, interval = 0;
};
/// Throws AlreadyExists when something in `folder` has the name of a planned tag and is not a
/// UniShard checkpoint, or is one and `may_replace` is false, and when `latest` names something
/// that is not UniShard's.
void require_free_names(Storage& storage, const Path& folder, const PlannedTags& planned,
                        bool may_replace);

/// Whether a run that is asked to go on from the newest checkpoint of `folder` loads one.
struct ResumeDecision {
  enum class Action : std::uint8_t { Load, StartFresh };
  Action action = Action::Load;
  bool beside = false;      ///< a fresh start next to something: none of it may be replaced
  std::string explanation;  ///< of a fresh start: one line
};
/// A fresh start is decided where nothing ever was: no folder, nothing in it that looks like a
/// checkpoint, or interrupted saves alone. Where something was that cannot be loaded, throws
/// NotFound, Corrupt or AlreadyExists saying what is there and which command shows more.
/// `fresh_beside`: such a folder is a fresh start too, unless it has a whole checkpoint.
/// Does not check the newest checkpoint's shards unless `fresh_beside`.
ResumeDecision decide_resume(Storage& storage, const Path& folder, bool fresh_beside);

/// Returns a hint that says how to resume from the newest whole checkpoints beside `damaged`, a
/// checkpoint's folder; empty where there is none. Whole are those whose manifest and tables are.
std::string other_checkpoints(Storage& storage, const Path& damaged);

}  // namespace unishard::trainer
