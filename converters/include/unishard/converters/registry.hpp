#pragma once
// The formats that this build reads and writes: one explicit table, in the order in which a path is
// tried.
// Thread safety: all functions are thread-safe.
#include "unishard/converters/parallel_ranks.hpp"
#include "unishard/converters/sink.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// How a checkpoint of a format is stored on disk.
enum class OutputShape : std::uint8_t {
  Tags,          ///< a folder of checkpoints, one per tag
  Folder,        ///< a folder is one checkpoint
  File,          ///< one file
  FileOrFolder,  ///< a model: one file, or a folder of shards with an index
};

struct FormatEntry {
  std::string_view name;         ///< the text of Source::format() and Probe::format
  std::string_view description;  ///< one line
  OutputShape shape = OutputShape::Folder;
};
/// Returns the formats that are read and written, in the order of help texts.
std::vector<FormatEntry> known_formats();
/// Returns the entry of the format `name`.
/// Throws: Unsupported, listing the known formats.
FormatEntry format_entry(std::string_view name);

/// A sub-folder in a folder of checkpoints.
struct TagFolder {
  std::string tag;
  std::string format;  ///< empty when it is no checkpoint of a known format
  /// The step that the name tells: 40 for "global_step40", "checkpoint-40" and "iter_0000040".
  std::optional<std::int64_t> step = {};
};
/// Returns the sub-folders of `path` by name and number, except those that interrupted saves left.
/// Links to folders count. The result is empty when `path` is no folder or is a checkpoint itself.
/// Decides by names and reads no file.
std::vector<TagFolder> list_tag_folders(Storage& storage, const Path& path);
/// Returns the same also when `path` is a checkpoint itself: the output folder of a training run
/// holds the final model beside `checkpoint-500`.
std::vector<TagFolder> list_sub_folders(Storage& storage, const Path& path);

/// Describes a checkpoint to be written.
struct Output {
  std::string format;  ///< a name of known_formats()
  Path path;
  std::string tag;                    ///< for OutputShape::Tags
  bool moves_latest = true;           ///< for OutputShape::Tags: `latest` names the result
  std::uint64_t max_shard_bytes = 0;  ///< for OutputShape::FileOrFolder; 0: one file
  SideFiles side_files = {};          ///< for every format but single files
  std::string stem = "model";         ///< of the model's files in a folder
  std::vector<std::pair<std::string, std::string>> metadata = {};  ///< for "safetensors"
  Compression compression = {};                                    ///< for "native"
  WorkSplit share = {};
  /// Source::layout() of a source of the same format; it is followed where the catalog still fits.
  Json layout = {};
  std::string key_layout = {};  ///< for "dcp", where `layout` is null: one of dcp_key_layouts()
  ParallelRanks parallel = {};  ///< for "deepspeed"
};
/// Returns the sink of output.format; sink.hpp describes the sinks.
/// Lifetime: `storage` must outlive the sink.
/// Throws: what the format's make function in sink.hpp throws.
std::unique_ptr<Sink> make_sink(Storage& storage, const Output& output, Catalog catalog);

}  // namespace unishard::converters
