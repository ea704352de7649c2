#pragma once
// A folder of checkpoints, and one open checkpoint. Reading only; commit.hpp writes.
#include "unishard/format/manifest.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
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

/// Throws what read_text() and decode_manifest() do.
Manifest read_manifest(Storage& storage, const Path& tag_folder);

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

/// One committed checkpoint, open for reading. Thread-safe.
class CheckpointReader {
 public:
  /// Reads the manifest and every shard's tables, and checks that every element of every tensor is
  /// in exactly one fragment and that the fragments' digests combine to the tensors'. No payload is
  /// read.
  CheckpointReader(Storage& storage, Path tag_folder);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const Path& folder() const;
  const Manifest& manifest() const;
  const Catalog& catalog() const { return manifest().catalog; }
  const std::vector<std::unique_ptr<ShardReader>>& shards() const;

  struct Piece {
    std::uint32_t shard = 0;
    std::uint32_t row = 0;
    ElementRange range;
  };
  /// The fragments of a tensor in element order.
  std::span<const Piece> pieces(std::size_t tensor) const;

  /// Elements `range` of catalog().tensors[tensor] into `out`, checked; derived tensors are rounded
  /// from fp32. Memory: at most a few chunks. Throws Corrupt naming file, tensor and byte.
  void read(std::size_t tensor, ElementRange range, std::span<std::byte> out) const;
  /// The first element that lies in the same fragment and the same chunk as `element`: reads that
  /// begin and end at such elements read no byte twice. The tensor's end is one too.
  std::uint64_t chunk_start(std::size_t tensor, std::uint64_t element) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Calls `read(tag_folder)` with what resolve_checkpoint() returns, and again when it fails because
/// a writer has replaced or removed that checkpoint meanwhile. After that `read` must be able to
/// start anew.
void read_stable(Storage& storage, const Path& path, const std::optional<std::string>& tag,
                 const std::function<void(const Path& tag_folder)>& read);

/// Opens the checkpoint that resolve_checkpoint() names, by read_stable(). An open checkpoint can
/// be read to its end although a writer removes it.
std::unique_ptr<CheckpointReader> open_checkpoint(Storage& storage, const Path& path,
                                                  const std::optional<std::string>& tag);

}  // namespace unishard
