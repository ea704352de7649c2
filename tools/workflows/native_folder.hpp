#pragma once
// Finds the native checkpoint that a path means. When there is none, the message says what the path
// is.
#include "unishard/converters/source.hpp"
#include "unishard/format/checkpoint_reader.hpp"

#include <memory>
#include <optional>
#include <string>

namespace unishard::tools {

/// Returns "a/b" for "a/b/", because std::filesystem gives "a/b/" an empty file name.
Path without_trailing_slash(const Path& path);
/// Returns the path absolute, without ".", ".." and a trailing slash, so that it has a name and a
/// parent.
Path absolute_folder(const Path& path);

/// Throws NotFound or Unsupported when `path` is neither a native checkpoint nor a folder with one.
void require_native(Storage& storage, const Path& path);

/// Calls require_native(), then open_checkpoint().
std::unique_ptr<CheckpointReader> open_native_checkpoint(Storage& storage, const Path& path,
                                                         const std::optional<std::string>& tag);

/// Throws InvalidArgument when `output` lies inside a checkpoint's folder, or when it is a
/// checkpoint itself and `is_folder_of_tags` is true. Sinks refuse other existing outputs.
void require_outside_checkpoints(Storage& storage, const Path& output, bool is_folder_of_tags);
/// Throws: InvalidArgument when `output` lies in the folder of the model that is read, of which the
/// result would be a part.
void require_outside_model(const converters::Source& source, const Path& output);

/// Returns the tag of the checkpoint that `path` means, in formats that have tags: `tag`, the
/// content of `latest` (or `latest_universal`), or the folder's own name when its parent has a
/// `latest`.
std::optional<std::string> tag_of(Storage& storage, const Path& path,
                                  const std::optional<std::string>& tag);

struct TaggedSource {
  std::unique_ptr<converters::Source> source;
  std::string tag;  ///< as tag_of(); empty in formats without tags
};
/// Calls open_source() and tag_of(), and returns what both say of one checkpoint even if a writer
/// moves `latest` meanwhile. Where `like` is not empty, calls open_source_like() with it.
TaggedSource open_tagged(Storage& storage, const Path& path, const converters::OpenOptions& options,
                         const std::string& like = {});

/// Throws Unsupported for a source that is only a part of a model (Source::part_of()): what is made
/// of it would be taken for the whole.
void require_whole(const converters::Source& source);

}  // namespace unishard::tools
