#pragma once
// A folder of checkpoints: its tags, the file `latest`, and what a path means. Reading only;
// commit.hpp writes.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard {

inline constexpr std::string_view kLatestFile = "latest";

/// A tag's folder that has a manifest. Cheap: only the head of the manifest's validity is checked.
struct TagEntry {
  std::string tag;
  std::int64_t step = 0;
  std::int64_t saved_unix_seconds = 0;
  std::string problem;  ///< empty, or why the manifest cannot be read
};

/// True when `tag_folder` is a folder, not a link to one, whose manifest begins as UniShard's do.
/// The rest of the manifest may be damaged.
bool is_unishard_checkpoint(Storage& storage, const Path& tag_folder);

/// What changes whenever the checkpoint in `tag_folder` is replaced, and is empty when there is
/// none: the first line of its manifest. Throws nothing but Io.
std::string checkpoint_stamp(Storage& storage, const Path& tag_folder);

/// Committed tags of `folder`, by (step, time, name), oldest first. Leftovers of interrupted saves
/// are not listed.
std::vector<TagEntry> list_tags(Storage& storage, const Path& folder);

/// What the file `latest` says. nullopt when there is none. Throws Corrupt for anything but one
/// valid tag.
std::optional<std::string> read_latest(Storage& storage, const Path& folder);

/// The tag folder that a path means: the path itself when it holds a manifest, else `tag` inside
/// it, else the tag that `latest` names, else (no `latest`) the newest readable tag. Throws
/// NotFound listing what is there. Reads `latest` again when it changes meanwhile.
Path resolve_checkpoint(Storage& storage, const Path& path, const std::optional<std::string>& tag);

/// Calls `read(tag_folder)` with what resolve_checkpoint() returns, and again when it fails because
/// a writer has replaced or removed that checkpoint meanwhile. After that `read` must be able to
/// start anew.
void read_stable(Storage& storage, const Path& path, const std::optional<std::string>& tag,
                 const std::function<void(const Path& tag_folder)>& read);

}  // namespace unishard
