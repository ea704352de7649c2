#pragma once
// Reads a folder of checkpoints: its tags, the file `latest`, and the checkpoint that a path names.
// commit.hpp writes such folders.
// Thread safety: all functions are thread-safe.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard {

inline constexpr std::string_view kLatestFile = "latest";

/// A tag: a folder that has a manifest.
struct TagEntry {
  std::string tag;
  std::int64_t step = 0;
  std::uint64_t commit_number = 0;  ///< 0 when the manifest has none or cannot be read
  std::int64_t saved_unix_seconds = 0;
  std::string problem;  ///< empty, or why the manifest cannot be read
};

/// Returns true when `tag_folder` is a folder, not a link to one, whose manifest begins like
/// UniShard's. The rest of the manifest may be damaged.
bool is_unishard_checkpoint(Storage& storage, const Path& tag_folder);

/// Returns the first line of the manifest, which changes whenever the checkpoint in `tag_folder` is
/// replaced; empty when there is no manifest.
/// Throws: Io.
std::string checkpoint_stamp(Storage& storage, const Path& tag_folder);

/// Returns the committed tags of `folder`, oldest first, in the order of their commits: by commit
/// number, then time, then step, then name. Reads every manifest.
/// Throws: what Storage::list() throws. A manifest that cannot be read is a TagEntry::problem.
std::vector<TagEntry> list_tags(Storage& storage, const Path& folder);

/// Returns a commit number for the next save: one above the largest in `folder`. Reads only the
/// first bytes of each manifest and does not check them.
/// Throws: what Storage::list() throws. A manifest that cannot be read counts as one without a
/// number.
std::uint64_t next_commit_number(Storage& storage, const Path& folder);

/// Returns the tag that the file `latest` names, or nullopt when there is no such file.
/// Throws: Corrupt when the file holds anything but one valid tag.
std::optional<std::string> read_latest(Storage& storage, const Path& folder);

/// Returns the tag folder that `path` names: `path` itself when it holds a manifest, else `tag`
/// inside it, else the tag that `latest` names, else (without `latest`) the newest readable tag.
/// Reads `latest` again when a writer moves it meanwhile.
/// Throws: NotFound, listing the tags that exist; InvalidArgument when `path` is a checkpoint with
/// another tag.
Path resolve_checkpoint(Storage& storage, const Path& path, const std::optional<std::string>& tag);

/// Calls `read` with the result of resolve_checkpoint(). When `read` throws an Error because a
/// writer replaced or removed that checkpoint meanwhile, resolves and calls it again, up to 20
/// times.
/// Pre: `read` can start again after it has failed.
void read_stable(Storage& storage, const Path& path, const std::optional<std::string>& tag,
                 const std::function<void(const Path& tag_folder)>& read);

}  // namespace unishard
