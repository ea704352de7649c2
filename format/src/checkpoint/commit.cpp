// The commit protocol. A reader sees a checkpoint exactly when `<tag>/manifest.json` exists, and
// every byte that the manifest vouches for is on disk before it does.
//
//  1. Rank 0 creates the staging folder `<tag>.partial-<save id>`. Readers skip such names, so
//  nothing is visible yet.
//  2. Each rank writes its shard there (ShardWriter). The save id is in every shard: two saves can
//  never mix.
//  3. Each rank syncs and closes its shard and checks both results. Then the ranks agree; if one
//  failed, rank 0
//     calls abandon_save() and all throw.
//  4. Rank 0 reads the tables of every shard back from the file system (what was written is what is
//  there) and syncs the
//     staging folder, so that the shards' names survive a crash.
//  5. Rank 0 writes the manifest under another name and syncs it: a crash leaves no half manifest
//  under the real name.
//  6. Rank 0 renames it to manifest.json and syncs the staging folder.
//  7. Rank 0 renames the staging folder to `<tag>`. This is the commit. Where the tag exists the
//  two folders are exchanged in
//     one atomic step; the old one then has the staging name and goes in step 10.
//  8. Rank 0 syncs the parent folder: the commit is durable.
//  9. `latest` is replaced (write beside, sync, rename, sync). A crash before leaves it on the
//  older checkpoint, which is
//     complete.
// 10. Retention: hide (rename), then delete, so that a crash never leaves half a checkpoint under a
// tag.
#include "unishard/format/commit.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/leftover.hpp"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace unishard {
namespace {

constexpr std::int64_t kAbandonedSeconds = std::int64_t{24} * 3600;

void report(const CommitOptions& options, CommitStep step) {
  if (options.on_step) options.on_step(step);
}

void remove_abandoned(Storage& storage, const Path& folder, std::string_view tag) {
  const std::int64_t now = std::time(nullptr);
  for (const Entry& entry : storage.list(folder)) {
    if (entry.kind != EntryKind::Directory || !has_mark(entry.name, kPartialMark)) continue;
    const bool same_tag =
        entry.name.size() == tag.size() + kPartialMark.size() + 32 && entry.name.starts_with(tag);
    if (same_tag || now - entry.modified_seconds > kAbandonedSeconds)
      storage.remove_tree(folder / entry.name);
  }
}

// Tensor digests and statistics from the shards' tables as they are on disk. Opening each shard
// checks it.
void combine_digests(Storage& storage, const Path& staging, Manifest& manifest) {
  struct Part {
    ElementRange range;
    std::uint64_t crc64;
    Stats stats;
  };
  std::vector<std::vector<Part>> parts(manifest.catalog.tensors.size());
  for (const ShardEntry& entry : manifest.shards) {
    const ShardReader shard(storage, staging / entry.file, entry, manifest.save_id,
                            manifest.catalog, manifest.chunk_bytes);
    for (const IndexRow& row : shard.rows())
      parts[row.tensor].push_back({row.range, row.crc64, row.stats});
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    TensorInfo& tensor = manifest.catalog.tensors[i];
    std::sort(parts[i].begin(), parts[i].end(),
              [](const Part& a, const Part& b) { return a.range < b.range; });
    std::uint64_t next = 0, digest = 0;
    Stats stats;
    for (const Part& part : parts[i]) {
      if (part.range.begin != next) break;
      next = part.range.end;
      digest = crc64_combine(digest, part.crc64, part.range.size() * size_of(tensor.dtype));
      stats.append(part.stats);
    }
    if (next != tensor.elements()) {
      raise(ErrorCode::Internal,
            fmt::format("{}: tensor {}: the shards do not hold each element once (element {})",
                        staging.native(), tensor.label(), next));
    }
    tensor.crc64 = digest;
    tensor.stats = stats;
  }
}

void check_identity(const Manifest& manifest, const Path& staging, const std::string& expected) {
  const std::string written = identity(manifest.catalog).value_or("none");
  if (written == expected) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: what was written has identity {}, the source has {}", staging.native(),
                    written, expected),
        "nothing was published; run `unishard verify --deep` on the source, and suspect the memory "
        "of this machine if it is sound");
}

void write_manifest(Storage& storage, const Path& path, const std::string& text) {
  const auto file = storage.create(path);
  file->write_at(0, std::as_bytes(std::span(text)));
  file->sync();
  file->close();
}

}  // namespace

std::string new_save_id() {
  std::array<std::uint64_t, 2> random{};
  if (::getrandom(random.data(), sizeof(random), 0) != sizeof(random))
    raise_errno("reading", "the system's random source", errno);
  return hex64(random[0]) + hex64(random[1]);
}

Path staging_folder(const Path& folder, std::string_view tag, const std::string& save_id) {
  return folder / marked_name(tag, kPartialMark, save_id);
}

Path begin_save(Storage& storage, const Path& folder, std::string_view tag,
                const std::string& save_id, const CommitOptions& options) {
  validate_tag(tag);
  storage.make_directory(folder);
  remove_abandoned(storage, folder, tag);
  report(options, CommitStep::CreateStaging);
  Path staging = staging_folder(folder, tag, save_id);
  storage.create_directory(staging);
  return staging;
}

Manifest commit_save(Storage& storage, const Path& folder, std::string_view tag,
                     const std::string& save_id, Catalog catalog, std::vector<ShardEntry> shards,
                     const CommitOptions& options) {
  const Path staging = staging_folder(folder, tag, save_id);
  Manifest manifest{save_id,
                    std::string(tag),
                    std::time(nullptr),
                    options.chunk_bytes,
                    std::move(catalog),
                    std::move(shards)};
  validate(manifest.catalog, fmt::format("saving {}", tag));
  combine_digests(storage, staging, manifest);
  if (options.identity) check_identity(manifest, staging, *options.identity);
  report(options, CommitStep::SyncStaging);
  storage.sync_directory(staging);

  report(options, CommitStep::WriteManifest);
  const Path hidden = staging / "manifest.writing";
  write_manifest(storage, hidden, encode_manifest(manifest));
  report(options, CommitStep::SyncManifest);
  storage.rename(hidden, staging / kManifestFile);
  storage.sync_directory(staging);

  report(options, CommitStep::PublishTag);
  const Path published = folder / tag;
  const bool replaces = storage.kind(published) != EntryKind::Missing;
  if (replaces) {
    storage.exchange(staging, published);
  } else {
    storage.rename(staging, published);
  }
  report(options, CommitStep::SyncFolder);
  storage.sync_directory(folder);

  report(options, CommitStep::MoveLatest);
  if (options.move_latest) replace_text(storage, folder / kLatestFile, std::string(tag) + "\n");
  report(options, CommitStep::Retain);
  if (replaces) storage.remove_tree(staging);
  prune(storage, folder, options.keep_last);
  return manifest;
}

void abandon_save(Storage& storage, const Path& folder, std::string_view tag,
                  const std::string& save_id) noexcept {
  try {
    storage.remove_tree(staging_folder(folder, tag, save_id));
  } catch (const std::exception&) {  // the next save of this tag removes it
  }
}

}  // namespace unishard
