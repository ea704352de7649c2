#pragma once
// The content of a checkpoint of any format, as `inspect` shows it. Only tables are read, unless
// the options request statistics or digests that the format does not store.
#include "unishard/converters/source.hpp"
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/checkpoint_folder.hpp"

#include "workflows/layout_drawing.hpp"

#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct DescribeOptions {
  bool layout = false;            ///< fill Description::owners
  bool stats = false;             ///< measure what has no stored statistics; reads the data
  bool identity = false;          ///< measure digests that are not stored; reads the data
  TransferOptions transfer = {};  ///< for measuring
  std::string like = {};          ///< a model, as for open_tagged()
};

struct Description {
  struct Shard {
    std::string file;
    std::uint32_t rank = 0;
    std::uint64_t bytes = 0;
    /// Bytes of its payload in files of earlier saves.
    std::uint64_t shared_bytes = 0;
    /// Those files, in the tag's folder.
    std::vector<std::string> shared_with;
  };
  /// One checkpoint. `step` is -1 when it has another format and its name tells no step.
  struct Tag : TagEntry {
    std::string format = "native";
  };
  std::string format;
  Path path;                          ///< the tag's folder, or the file or folder of another format
  std::string tag;                    ///< empty when the format has no tags
  std::optional<std::string> latest;  ///< tag that `latest` in the parent folder names
  std::string latest_problem;         ///< why `latest` names no checkpoint; empty when it does
  std::vector<Tag> tags;              ///< tags in the parent folder
  std::int64_t saved_unix_seconds = 0;
  Catalog catalog;
  std::optional<std::string> identity;
  std::vector<Shard> shards;
  /// Compression of the shards; empty: none.
  std::string compression;
  /// Per tensor. Of a tensor in too many ranges (Source::stored_ranges()): none.
  std::vector<std::vector<OwnedPart>> owners;
  converters::Losses losses;       ///< what the files hold and the catalog does not
  std::vector<std::string> notes;  ///< Source::part_of() and notes_and_remarks()

  /// Returns true for the state of a run, with a step and ranks; false for a model or other
  /// tensors.
  bool is_run() const;
};

/// Returns `tags`, `latest` and `latest_problem` of the folder `path`, or of the folder that
/// contains the checkpoint `path`. Opens no checkpoint, so it works when `latest` or a checkpoint
/// is damaged.
Description describe_tags(Storage& storage, const Path& path);

/// Throws: what open_source() throws.
Description describe(Storage& storage, const Path& path, const converters::OpenOptions& open,
                     const DescribeOptions& options);

}  // namespace unishard::tools
