#pragma once
// The formats that this build knows, all of them read and written: one explicit table, in the order
// in which a path is tried.
#include "unishard/converters/sink.hpp"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// What a checkpoint of a format is on disk.
enum class OutputShape : std::uint8_t {
  Tags,          ///< a folder of checkpoints, one per tag
  Folder,        ///< a folder is one checkpoint
  File,          ///< one file
  FileOrFolder,  ///< a model: one file, or a folder of shards with an index
};

struct FormatEntry {
  std::string_view name;         ///< what Source::format() and Probe::format say
  std::string_view description;  ///< one line
  OutputShape shape = OutputShape::Folder;
};
std::vector<FormatEntry> known_formats();
/// Throws Unsupported naming the formats that there are.
FormatEntry format_entry(std::string_view name);

/// A sub-folder of a folder of checkpoints.
struct TagFolder {
  std::string tag;
  std::string format;  ///< empty: it is no checkpoint of a known format
};
/// The sub-folders of `path`, by name, without what interrupted saves left; each may be of another
/// format. Links to folders count. Empty when `path` is no folder, and when it is a checkpoint
/// itself. Names decide: nothing is read.
std::vector<TagFolder> list_tag_folders(Storage& storage, const Path& path);
/// The checkpoints of known formats in the sub-folders of `path`, which may be one itself: a
/// training run's output folder holds the final model and `checkpoint-500` beside it.
std::vector<TagFolder> list_nested_checkpoints(Storage& storage, const Path& path);

/// Where a checkpoint is written.
struct Output {
  std::string format;  ///< a name of known_formats()
  Path path;
  std::string tag;                    ///< for OutputShape::Tags
  std::uint64_t max_shard_bytes = 0;  ///< for OutputShape::FileOrFolder; 0: one file
  SideFiles side_files = {};          ///< for model folders
  std::vector<std::pair<std::string, std::string>> metadata = {};  ///< for "safetensors"
  Compression compression = {};                                    ///< for "native"
  WorkSplit share = {};
};
/// The sink of output.format, as sink.hpp describes it.
std::unique_ptr<Sink> make_sink(Storage& storage, const Output& output, Catalog catalog);

}  // namespace unishard::converters
