#include "unishard/format/node_shards.hpp"

#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard {

std::vector<bool> shards_here(Storage& storage, const Path& tag_folder, const Manifest& manifest) {
  std::vector<bool> here;
  for (const ShardEntry& entry : manifest.shards)
    here.push_back(storage.kind(tag_folder / entry.file) == EntryKind::File);
  return here;
}

std::string list_missing_shards(const Manifest& manifest, const std::vector<bool>& here) {
  constexpr std::size_t kNamed = 16;
  const std::vector<std::string> nodes = nodes_of(manifest.catalog);
  std::string text;
  std::size_t named = 0, missing = 0;
  for (std::size_t rank = 0; rank < here.size(); ++rank) {
    if (here[rank]) continue;
    if (++missing > kNamed) continue;
    text += fmt::format("{}{}", named++ == 0 ? "" : ", ", manifest.shards[rank].file);
    const auto next =
        std::find(here.begin() + static_cast<std::ptrdiff_t>(rank) + 1, here.end(), false);
    const auto next_rank = static_cast<std::size_t>(next - here.begin());
    const bool is_last_of_node = next == here.end() || missing == kNamed ||
                                 (!nodes.empty() && nodes[next_rank] != nodes[rank]);
    if (!nodes.empty() && is_last_of_node) text += fmt::format(" (of node {})", nodes[rank]);
  }
  if (missing > kNamed) text += fmt::format(" and {} more", missing - kNamed);
  return text;
}

Manifest require_whole_part(Storage& storage, const Path& tag_folder) {
  Manifest manifest = read_manifest(storage, tag_folder);
  if (nodes_of(manifest.catalog).empty()) return CheckpointReader(storage, tag_folder).manifest();
  const std::vector<bool> here = shards_here(storage, tag_folder, manifest);
  if (std::ranges::find(here, true) == here.end())
    raise(ErrorCode::NotFound, fmt::format("{}: no shard is here", tag_folder.native()));
  for (std::size_t rank = 0; rank < here.size(); ++rank) {
    if (!here[rank]) continue;
    const ShardEntry& entry = manifest.shards[rank];
    ShardReader(storage, tag_folder / entry.file, entry, manifest.save_id, manifest.catalog,
                manifest.chunk_bytes);
  }
  return manifest;
}

}  // namespace unishard
