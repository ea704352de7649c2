#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/leftover.hpp"

#include <algorithm>

namespace unishard {

std::vector<std::string> plan_prune(Storage& storage, const Path& folder, std::uint32_t keep_last) {
  if (keep_last == 0) return {};
  std::vector<TagEntry> complete = list_tags(storage, folder);
  std::erase_if(complete, [](const TagEntry& tag) { return !tag.problem.empty(); });
  if (complete.size() <= keep_last) return {};
  complete.resize(complete.size() - keep_last);
  const std::optional<std::string> latest = read_latest(storage, folder);
  std::vector<std::string> tags;
  for (const TagEntry& tag : complete) {
    if (tag.tag != latest) tags.push_back(tag.tag);
  }
  return tags;
}

std::vector<std::string> prune(Storage& storage, const Path& folder, std::uint32_t keep_last) {
  const std::vector<std::string> tags = plan_prune(storage, folder, keep_last);
  for (const std::string& tag : tags) {
    storage.rename(folder / tag, folder / marked_name(tag, kRemovedMark, new_save_id()));
  }
  if (!tags.empty()) storage.sync_directory(folder);
  for (const Entry& entry : storage.list(folder)) {
    if (entry.kind == EntryKind::Directory && has_mark(entry.name, kRemovedMark))
      storage.remove_tree(folder / entry.name);
  }
  return tags;
}

}  // namespace unishard
