#pragma once
// manifest.json names the shards of one committed checkpoint and holds its catalog. A checkpoint is
// committed exactly when this file exists. Implements SPEC.md, section "Manifest".
// Thread safety: values and pure functions.
#include "unishard/format/catalog.hpp"
#include "unishard/format/shard_entry.hpp"
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unishard {

inline constexpr std::string_view kManifestFile = "manifest.json";
/// Name of the manifest until it is synced.
inline constexpr std::string_view kHiddenManifestFile = "manifest.writing";

/// Returns true when `name` is a name that UniShard gives to files in a tag's folder.
bool is_own_file(std::string_view name);

struct Manifest {
  std::string save_id;  ///< 128 random bits in hexadecimal; the same in every shard of this save
  std::string tag;
  /// Place in the order of the commits in one folder, from 1; 0 when the writer did not count.
  std::uint64_t commit_number = 0;
  std::int64_t saved_unix_seconds = 0;
  std::uint64_t chunk_bytes = kChunkBytes;
  Catalog catalog;
  std::vector<ShardEntry> shards;  ///< one per rank, in rank order
};

/// Returns the text of the file: a first line with the checksum of all that follows, then the JSON
/// members.
std::string encode_manifest(const Manifest& manifest);

/// Parses a manifest and checks its checksum, version, required features, every field and the whole
/// catalog. `where` begins every message.
/// Throws: Corrupt or Unsupported, naming the field; MemoryLimit as parse_json() does.
Manifest decode_manifest(std::string_view text, std::string_view where);

/// Reads the manifest of the checkpoint in `tag_folder`.
/// Throws: what read_text() and decode_manifest() throw.
Manifest read_manifest(Storage& storage, const Path& tag_folder);

/// Checks that a tag is a valid folder name: 1 to 200 bytes of UTF-8 without '/', control
/// characters or a leading '.', and no name that UniShard uses itself.
/// Throws: InvalidArgument, naming the broken rule.
void validate_tag(std::string_view tag);

}  // namespace unishard
