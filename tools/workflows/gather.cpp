#include "workflows/gather.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/node_shards.hpp"

#include "workflows/native_folder.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::tools {
namespace {

constexpr const char* kNothingWritten = "nothing was written";

/// A node's part of the checkpoint.
struct NodePart {
  Path folder;  ///< of the tag
  std::string text;
  Manifest manifest;
};

NodePart read_part(Storage& storage, const Path& folder, const std::optional<std::string>& tag) {
  require_native(storage, folder);
  NodePart part{.folder = resolve_checkpoint(storage, without_trailing_slash(folder), tag),
                .text = {},
                .manifest = {}};
  const Path file = part.folder / kManifestFile;
  part.text = read_text(storage, file, limits::kManifestBytes);
  part.manifest = decode_manifest(part.text, file.native());
  return part;
}

std::string describe(const NodePart& part) {
  return fmt::format("{} (tag {}, step {}, save {})", part.folder.native(),
                     quote(part.manifest.tag), part.manifest.catalog.step, part.manifest.save_id);
}

void require_same_save(const NodePart& first, const NodePart& other) {
  if (first.manifest.save_id != other.manifest.save_id) {
    raise(ErrorCode::Mismatch,
          fmt::format("these are parts of different saves: {} and {}", describe(first),
                      describe(other)),
          fmt::format("name a checkpoint that all nodes have with --tag; {}", kNothingWritten));
  }
  if (first.text != other.text) {
    raise(ErrorCode::Corrupt,
          fmt::format("{} and {} are of one save, and their manifests differ",
                      first.folder.native(), other.folder.native()),
          fmt::format("one of them was changed after the save: leave out the folder that you do "
                      "not trust, or copy the manifest of the right one; {}",
                      kNothingWritten));
  }
}

bool is_sound(Storage& storage, const NodePart& part, const ShardEntry& entry) {
  try {
    const Manifest& manifest = part.manifest;
    ShardReader(storage, part.folder / entry.file, entry, manifest.save_id, manifest.catalog,
                manifest.chunk_bytes);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Returns the part from which a shard is read; null when no part has its file.
const NodePart* choose_part(Storage& storage, const std::vector<NodePart>& parts,
                            const ShardEntry& entry) {
  std::vector<const NodePart*> holders;
  for (const NodePart& part : parts)
    if (storage.kind(part.folder / entry.file) == EntryKind::File) holders.push_back(&part);
  if (holders.size() < 2) return holders.empty() ? nullptr : holders.front();
  const auto sound = std::ranges::find_if(
      holders, [&](const NodePart* part) { return is_sound(storage, *part, entry); });
  return sound == holders.end() ? holders.front() : *sound;
}

/// Makes the files of a shard appear in `folder`.
void add_shard(OverlaidStorage& into, Storage& storage, const Path& folder, const Path& from,
               const ShardEntry& entry) {
  std::vector<std::string> names{entry.file};
  for (const BaseFile& base : entry.bases) names.push_back(base.file);
  for (const std::string& name : names)
    into.add(folder / name, [&storage, path = from / name] { return storage.open(path); });
}

}  // namespace

GatheredCheckpoint open_gathered(Storage& storage, const std::vector<Path>& folders,
                                 const std::optional<std::string>& tag) {
  std::vector<NodePart> parts;
  for (const Path& folder : folders) {
    parts.push_back(read_part(storage, folder, tag));
    require_same_save(parts.front(), parts.back());
  }
  const auto& [folder, text, manifest] = parts.front();
  GatheredCheckpoint gathered{std::make_unique<OverlaidStorage>(storage), nullptr};
  std::vector<bool> found;
  for (const ShardEntry& entry : manifest.shards) {
    const NodePart* const part = choose_part(storage, parts, entry);
    found.push_back(part != nullptr);
    if (part) add_shard(*gathered.storage, storage, folder, part->folder, entry);
  }
  if (std::ranges::find(found, false) != found.end()) {
    raise(ErrorCode::NotFound,
          fmt::format("{}: no folder has {}", quote(manifest.tag),
                      list_missing_shards(manifest, found)),
          fmt::format("name the folders of all nodes that saved it; {}", kNothingWritten));
  }
  gathered.reader = std::make_shared<const CheckpointReader>(*gathered.storage, folder);
  return gathered;
}

}  // namespace unishard::tools
