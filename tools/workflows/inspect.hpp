#pragma once
// What `inspect` shows of a checkpoint of any format, as a value. From tables only, unless
// statistics are asked for that the format does not store.
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
};

struct Description {
  struct Shard {
    std::string file;
    std::uint32_t rank = 0;
    std::uint64_t bytes = 0;
    std::uint64_t shared_bytes = 0;        ///< of its payload, in files of earlier saves
    std::vector<std::string> shared_with;  ///< those files, in the tag's folder
  };
  std::string format;
  Path path;                          ///< the tag's folder, or the file or folder of another format
  std::string tag;                    ///< empty where the format has none
  std::optional<std::string> latest;  ///< what the folder around it says
  std::string latest_problem;         ///< why `latest` names no checkpoint; empty when it does
  std::vector<TagEntry> tags;         ///< of the folder around it
  std::int64_t saved_unix_seconds = 0;
  Catalog catalog;
  std::optional<std::string> identity;
  std::vector<Shard> shards;
  std::string compression;                      ///< of the shards; empty: none
  std::vector<std::vector<OwnedRange>> owners;  ///< per tensor
  std::vector<std::string> notes;               ///< Source::notes()

  /// The state of a run, with a step and ranks; otherwise a model or other tensors.
  bool is_run() const;
};

/// The checkpoints in the folder `path`, or beside the checkpoint `path`: only `tags`, `latest` and
/// `latest_problem` are set. Opens none of them, so it works where `latest` or a checkpoint is
/// damaged. A checkpoint of another format says so in TagEntry::problem.
Description describe_tags(Storage& storage, const Path& path);

Description describe(Storage& storage, const Path& path, const std::optional<std::string>& tag,
                     const DescribeOptions& options);

}  // namespace unishard::tools
