#pragma once
// manifest.json: names the shards of one committed checkpoint and holds its catalog. Its presence
// is the commit. Implements SPEC.md section "Manifest". Values and pure functions; any thread.
#include "unishard/format/catalog.hpp"
#include "unishard/format/shard_entry.hpp"
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unishard {

inline constexpr std::string_view kManifestFile = "manifest.json";
/// What the manifest is called until it is synced.
inline constexpr std::string_view kHiddenManifestFile = "manifest.writing";

struct Manifest {
  std::string save_id;  ///< 128 random bits in hexadecimal; the same in every shard of this save
  std::string tag;
  std::int64_t saved_unix_seconds = 0;
  std::uint64_t chunk_bytes = kChunkBytes;
  Catalog catalog;
  std::vector<ShardEntry> shards;  ///< by rank
};

/// The file's text: a first line with the checksum of all that follows, then the JSON members.
std::string encode_manifest(const Manifest& manifest);

/// Checks the checksum, the version and required features, every field and the whole catalog.
/// Throws Corrupt or Unsupported naming `where` and the field.
Manifest decode_manifest(std::string_view text, std::string_view where);

/// Reads the manifest of the checkpoint in `tag_folder`. Throws what read_text() and
/// decode_manifest() do.
Manifest read_manifest(Storage& storage, const Path& tag_folder);

/// Tags name folders: 1 to 200 bytes of UTF-8 without '/', control characters, a leading '.', or
/// the suffixes that UniShard uses itself. Throws InvalidArgument saying which rule is broken.
void validate_tag(std::string_view tag);

}  // namespace unishard
