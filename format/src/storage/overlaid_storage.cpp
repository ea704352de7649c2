#include "unishard/format/overlaid_storage.hpp"

#include <algorithm>

namespace unishard {

std::unique_ptr<File> OverlaidStorage::open(const Path& path) {
  const auto found = files_.find(path.lexically_normal());
  return found == files_.end() ? below_.open(path) : found->second();
}

EntryKind OverlaidStorage::kind(const Path& path) {
  if (files_.contains(path.lexically_normal())) return EntryKind::File;
  const EntryKind kind = below_.kind(path);
  return kind == EntryKind::Missing && is_folder_of_added(path) ? EntryKind::Directory : kind;
}

std::vector<Entry> OverlaidStorage::list(const Path& directory) {
  std::vector<Entry> entries;
  if (!is_folder_of_added(directory) || below_.kind(directory) != EntryKind::Missing)
    entries = below_.list(directory);
  const Path folder = directory.lexically_normal();
  for (const auto& [path, open] : files_) {
    const std::string name = path.filename().string();
    if (path.parent_path() == folder &&
        std::ranges::find(entries, name, &Entry::name) == entries.end())
      entries.push_back({.name = name, .kind = EntryKind::File});
  }
  std::ranges::sort(entries, {}, &Entry::name);
  return entries;
}

bool OverlaidStorage::is_folder_of_added(const Path& path) const {
  const Path folder = path.lexically_normal();
  return std::ranges::any_of(files_,
                             [&](const auto& file) { return file.first.parent_path() == folder; });
}

}  // namespace unishard
