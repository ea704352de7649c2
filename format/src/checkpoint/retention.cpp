#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/node_shards.hpp"

#include "checkpoint/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ranges>

namespace unishard {
namespace {

/// Returns why the checkpoint does not count: it is not whole, or it is a copy under
/// another name. Empty when it counts.
std::string reason_not_to_count(Storage& storage, const Path& tag_folder) {
  try {
    const std::string tag = require_whole_part(storage, tag_folder).tag;
    if (tag == tag_folder.filename().string()) return {};
    return fmt::format("it was saved as {} and then renamed or copied", quote(tag));
  } catch (const Error& error) {
    return fmt::format("it is damaged: {}", error.what());
  }
}

/// Returns why a checkpoint that is not among the newest must be kept; empty when it may be
/// removed.
std::string reason_to_stay(Storage& storage, const Path& tag_folder) {
  const auto foreign = detail::find_foreign_entry(storage, tag_folder);
  if (foreign) return fmt::format("it holds {}, which UniShard did not write", quote(*foreign));
  return reason_not_to_count(storage, tag_folder);
}

bool is_gone(Storage& storage, const Path& tag_folder) {
  return storage.kind(tag_folder / kManifestFile) == EntryKind::Missing;
}

/// Hides a checkpoint unless `latest` names it by now. Returns its new name, or nullopt when
/// another process removed it first.
std::optional<std::string> hide(Storage& storage, const Path& folder, const std::string& tag) {
  const OutputLock lock = OutputLock::beside(storage, folder / tag);
  if (read_latest(storage, folder) == tag) return std::nullopt;
  std::string hidden = marked_name(tag, kRemovedMark, new_save_id());
  try {
    storage.rename(folder / tag, folder / hidden);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::NotFound) return std::nullopt;
    throw;
  }
  return hidden;
}

/// Folders with files of UniShard's and no manifest: what is left of a checkpoint.
void note_lost_manifests(Storage& storage, const Path& folder, PruneResult& plan) {
  for (const Entry& entry : storage.list(folder)) {
    const Path path = folder / entry.name;
    if (entry.kind != EntryKind::Directory || is_leftover(entry.name) || !is_gone(storage, path) ||
        !detail::holds_own_file(storage, path)) {
      continue;
    }
    plan.kept.push_back(
        {entry.name, "its manifest.json is missing, so nothing says whether it is needed"});
  }
}

}  // namespace

PruneResult plan_prune(Storage& storage, const Path& folder, std::uint32_t keep_last,
                       std::string_view just_saved) {
  PruneResult plan;
  if (keep_last == 0) return plan;
  note_lost_manifests(storage, folder, plan);
  const std::vector<TagEntry> tags = list_tags(storage, folder);
  if (tags.size() <= keep_last) return plan;
  const std::optional<std::string> latest = read_latest(storage, folder);
  const std::map<std::string, std::string> links = detail::find_links(folder);
  std::uint32_t whole = 0;
  for (const TagEntry& tag : std::views::reverse(tags)) {
    const Path tag_folder = folder / tag.tag;
    std::string reason = tag.problem.empty() ? "" : fmt::format("it is damaged: {}", tag.problem);
    const bool is_candidate = reason.empty() && whole == keep_last;
    if (is_candidate && (tag.tag == latest || tag.tag == just_saved)) continue;
    const auto link = links.find(tag.tag);
    if (is_candidate && link != links.end()) {
      reason = fmt::format("{} is a link to it", quote(link->second));
    } else if (is_candidate) {
      reason = reason_to_stay(storage, tag_folder);
    } else if (reason.empty()) {
      reason = reason_not_to_count(storage, tag_folder);
      if (reason.empty()) ++whole;
    }
    if (!reason.empty() && !is_gone(storage, tag_folder)) {
      plan.kept.push_back({tag.tag, std::move(reason)});
    } else if (is_candidate && reason.empty()) {
      plan.removed.push_back(tag.tag);
    }
  }
  std::ranges::reverse(plan.removed);
  return plan;
}

PruneResult prune(Storage& storage, const Path& folder, std::uint32_t keep_last,
                  std::string_view just_saved) {
  PruneResult plan = plan_prune(storage, folder, keep_last, just_saved);
  PruneResult done{{}, std::move(plan.kept)};
  const auto keep = [&](const std::string& name, const std::string& reason) {
    done.kept.push_back({name, reason, true});
  };
  for (const std::string& tag : plan.removed) {
    try {
      if (hide(storage, folder, tag)) done.removed.push_back(tag);
    } catch (const Error& error) {
      keep(tag, error.what());
    }
  }
  if (!done.removed.empty()) storage.sync_directory(folder);
  detail::sweep(storage, folder, keep);
  return done;
}

}  // namespace unishard
