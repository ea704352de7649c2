#include "unishard/format/checkpoint_folder.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/manifest.hpp"
#include "unishard/format/output_lock.hpp"
#include "unishard/format/staging_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <tuple>

namespace unishard {

namespace {

/// {"crc64":"<16 digits>",\n"format":"unishard"
constexpr std::size_t kStampBytes = 48;

/// Returns up to `bytes` bytes of the manifest; empty when there is none.
std::string manifest_head(Storage& storage, const Path& tag_folder, std::size_t bytes) {
  try {
    const auto file = storage.open(tag_folder / kManifestFile);
    std::string head(std::min<std::uint64_t>(file->size(), bytes), '\0');
    file->read_at(0, std::as_writable_bytes(std::span(head)));
    return head;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Io) throw;
    return {};
  }
}

/// Returns the number that stands directly after the member `format`, or 0.
std::uint64_t commit_number_in(std::string_view head) {
  constexpr std::string_view kMembers = "\"format\":\"unishard\",\n\"commit_number\":";
  const std::size_t at = head.find(kMembers);
  if (at == head.npos) return 0;
  const std::string_view digits = head.substr(at + kMembers.size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && number <= limits::kCommitNumber ? number : 0;
}

}  // namespace

std::string checkpoint_stamp(Storage& storage, const Path& tag_folder) {
  return manifest_head(storage, tag_folder, kStampBytes);
}

bool is_unishard_checkpoint(Storage& storage, const Path& tag_folder) {
  const auto entries = storage.list(parent_folder(tag_folder));
  const auto found = std::ranges::find(entries, tag_folder.filename().native(), &Entry::name);
  if (found == entries.end() || found->kind != EntryKind::Directory) return false;
  const std::string head = checkpoint_stamp(storage, tag_folder);
  return head.starts_with("{\"crc64\":\"") && head.find("\"format\":\"unishard\"") != head.npos;
}

std::vector<TagEntry> list_tags(Storage& storage, const Path& folder) {
  std::vector<TagEntry> tags;
  for (const Entry& entry : storage.list(folder)) {
    if (entry.kind != EntryKind::Directory || is_leftover(entry.name)) continue;
    if (storage.kind(folder / entry.name / kManifestFile) != EntryKind::File) continue;
    TagEntry tag{entry.name, -1, 0, entry.modified_seconds, {}};
    try {
      const Manifest manifest = read_manifest(storage, folder / entry.name);
      tag.step = manifest.catalog.step;
      tag.commit_number = manifest.commit_number;
      tag.saved_unix_seconds = manifest.saved_unix_seconds;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::NotFound) continue;  // removed meanwhile
      tag.problem = error.what();
    }
    tags.push_back(std::move(tag));
  }
  std::sort(tags.begin(), tags.end(), [](const TagEntry& a, const TagEntry& b) {
    return std::tie(a.commit_number, a.saved_unix_seconds, a.step, a.tag) <
           std::tie(b.commit_number, b.saved_unix_seconds, b.step, b.tag);
  });
  return tags;
}

std::uint64_t next_commit_number(Storage& storage, const Path& folder) {
  constexpr std::size_t kBytesRead = 128;
  std::uint64_t last = 0;
  for (const Entry& entry : storage.list(folder)) {
    if (entry.kind != EntryKind::Directory || is_leftover(entry.name)) continue;
    try {
      const std::string head = manifest_head(storage, folder / entry.name, kBytesRead);
      last = std::max(last, commit_number_in(head));
    } catch (const Error&) {  // another program's folder may be unreadable
    }
  }
  return std::min(last + 1, limits::kCommitNumber);
}

std::optional<std::string> read_latest(Storage& storage, const Path& folder) {
  const Path path = folder / kLatestFile;
  if (storage.kind(path) == EntryKind::Missing) return std::nullopt;
  std::string tag = read_text(storage, path, limits::kTagBytes + 1);
  if (tag.ends_with('\n')) tag.pop_back();
  try {
    validate_tag(tag);
  } catch (const Error& error) {
    raise(ErrorCode::Corrupt, fmt::format("{}: {}", path.native(), error.what()),
          "write the tag to use into the file, or name it with --tag");
  }
  return tag;
}

namespace {

bool has_manifest(Storage& storage, const Path& folder) {
  return storage.kind(folder / kManifestFile) == EntryKind::File;
}

[[noreturn]] void not_found(const Path& path, const std::string& problem,
                            const std::vector<TagEntry>& tags) {
  std::string names;
  for (const TagEntry& tag : tags) names += (names.empty() ? "" : ", ") + tag.tag;
  raise(ErrorCode::NotFound, fmt::format("{}: {}", path.native(), problem),
        tags.empty()
            ? "name a folder that holds `latest` and checkpoints, or one checkpoint's folder"
            : "complete checkpoints here: " + names);
}

}  // namespace

Path resolve_checkpoint(Storage& storage, const Path& path, const std::optional<std::string>& tag) {
  const EntryKind kind = storage.kind(path);
  if (kind == EntryKind::Missing)
    raise(ErrorCode::NotFound, fmt::format("{}: no such folder", path.native()), "check the path");
  if (kind != EntryKind::Directory)
    raise(ErrorCode::NotFound, fmt::format("{} is not a folder", path.native()),
          "name the checkpoint's folder");
  if (has_manifest(storage, path)) {
    const Path name = path.has_filename() ? path.filename() : path.parent_path().filename();
    if (!tag || name == *tag) return path;
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} is one checkpoint's folder, so it has no tag {}", path.native(),
                      quote(*tag)));
  }
  if (tag) {
    validate_tag(*tag);
    if (has_manifest(storage, path / *tag)) return path / *tag;
    not_found(path, fmt::format("no complete checkpoint with tag {}", quote(*tag)),
              list_tags(storage, path));
  }
  // A writer that removes the tag has moved `latest` before.
  std::optional<std::string> latest = read_latest(storage, path);
  while (latest) {
    const std::string name = latest.value_or("");
    if (has_manifest(storage, path / name)) return path / name;
    auto now = read_latest(storage, path);
    if (now == latest || !now) {
      not_found(path / kLatestFile,
                fmt::format("names {}, which is not a complete checkpoint here", quote(name)),
                list_tags(storage, path));
    }
    latest = std::move(now);
  }
  const std::vector<TagEntry> tags = list_tags(storage, path);
  const auto newest = std::find_if(tags.rbegin(), tags.rend(),
                                   [](const TagEntry& entry) { return entry.problem.empty(); });
  if (newest == tags.rend()) not_found(path, "no complete checkpoint here", tags);
  return path / newest->tag;
}

void read_stable(Storage& storage, const Path& path, const std::optional<std::string>& tag,
                 const std::function<void(const Path& tag_folder)>& read) {
  constexpr int kTries = 20;
  for (int i = 1;; ++i) {
    const Path folder = resolve_checkpoint(storage, path, tag);
    const std::string stamp = checkpoint_stamp(storage, folder);
    try {
      return read(folder);
    } catch (const Error&) {
      const bool is_unchanged = !stamp.empty() && checkpoint_stamp(storage, folder) == stamp;
      if (i == kTries || is_unchanged) throw;
    }
  }
}

}  // namespace unishard
