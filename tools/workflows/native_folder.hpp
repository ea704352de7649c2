#pragma once
// Finding the native checkpoint that a path means, with a message that says what the path is when
// it is none.
#include "unishard/format/checkpoint_reader.hpp"

#include <memory>
#include <optional>
#include <string>

namespace unishard::tools {

/// "a/b/" as "a/b": a trailing slash hides a folder's name from std::filesystem.
Path without_trailing_slash(const Path& path);
/// Absolute, without ".", ".." and a trailing slash, so that it has a name and a parent.
Path absolute_folder(const Path& path);

/// The folder of tags, or of one tag, as given. Throws NotFound or Unsupported when it holds no
/// native checkpoint.
void require_native(Storage& storage, const Path& path);

/// require_native(), then open_checkpoint().
std::unique_ptr<CheckpointReader> open_native_checkpoint(Storage& storage, const Path& path,
                                                         const std::optional<std::string>& tag);

/// Throws InvalidArgument when `output` lies inside a checkpoint's folder. A folder of tags must
/// not be such a folder itself either; of other outputs their sink says that they are there
/// already.
void require_outside_checkpoints(Storage& storage, const Path& output, bool is_folder_of_tags);

/// The tag of the checkpoint that a path means, in formats that have tags: `tag`, what `latest` (or
/// `latest_universal`) says, or the folder's own name when a `latest` lies beside it.
std::optional<std::string> tag_of(Storage& storage, const Path& path,
                                  const std::optional<std::string>& tag);

}  // namespace unishard::tools
