#include "checkpoint/sweep.hpp"

#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/manifest.hpp"
#include "unishard/format/output_lock.hpp"
#include "unishard/format/staging_names.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <vector>

namespace unishard::detail {
namespace {

constexpr std::int64_t kAbandonedSeconds = std::int64_t{24} * 3600;

/// Runs `remove`. A missing entry is no failure; any other failure is reported.
template <class Remove>
void try_to(const std::string& name, const ReportKept& report, const Remove& remove) {
  try {
    remove();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::NotFound) report(name, error.what());
  }
}

template <class Call>
void ignore_missing(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::NotFound) throw;
  }
}

/// Pre: the caller holds the lock of the name from which `entry` was made.
void remove_staging(Storage& storage, const Path& folder, const Entry& entry,
                    const ReportKept& report) {
  try_to(entry.name, report, [&] {
    const Path path = folder / entry.name;
    if (entry.kind != EntryKind::Directory) return storage.remove_file(path);
    // Renames first: a writer that was wrongly taken for dead then fails, and publishes nothing.
    const std::string name(unmarked_name(entry.name, kPartialMark));
    const bool is_whole = storage.kind(path / kManifestFile) == EntryKind::File;
    const Path hidden =
        folder / marked_name(name, is_whole ? kRemovedMark : kPartialMark, new_save_id());
    storage.rename(path, hidden);
    if (!is_whole) storage.remove_tree(hidden);  // sweep() removes a checkpoint that was replaced
  });
}

/// Returns what the folder holds: nothing when it is missing, or another process removes it first.
std::vector<Entry> entries_of(Storage& storage, const Path& folder) {
  std::vector<Entry> entries;
  ignore_missing([&] { entries = storage.list(folder); });
  return entries;
}

bool is_old(const Entry& entry) {
  return std::time(nullptr) - entry.modified_seconds > kAbandonedSeconds;
}

/// Whether an owner on this host has not renewed its lock for a while, as it does every few
/// seconds: then it has died. A lock that is just being made has no text yet. Other hosts may have
/// other clocks.
bool is_silent(Storage& storage, const Path& folder, const Entry& entry) {
  constexpr std::int64_t kSilentSeconds = 60;
  constexpr std::uint64_t kTextBytes = 4096;
  const bool is_late = std::time(nullptr) - entry.modified_seconds > kSilentSeconds;
  if (!is_late || entry.kind != EntryKind::File) return false;
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) return false;
  try {
    const std::string text = read_text(storage, folder / entry.name, kTextBytes);
    return text.ends_with(fmt::format("\n{}\n", host.data()));
  } catch (const Error&) {
    return false;  // just removed, or no lock
  }
}

}  // namespace

bool has_committed_tag(Storage& storage, const Path& folder) {
  return std::ranges::any_of(storage.list(folder), [&](const Entry& entry) {
    return entry.kind == EntryKind::Directory && !is_leftover(entry.name) &&
           storage.kind(folder / entry.name / kManifestFile) == EntryKind::File;
  });
}

std::optional<std::string> find_foreign_entry(Storage& storage, const Path& tag_folder) {
  for (const Entry& entry : entries_of(storage, tag_folder)) {
    const bool is_ours = entry.kind == EntryKind::File && is_own_file(entry.name);
    if (!is_ours && !entry.name.starts_with(".nfs")) return entry.name;
  }
  return std::nullopt;
}

bool holds_own_file(Storage& storage, const Path& tag_folder) {
  return storage.kind(tag_folder) == EntryKind::Directory &&
         std::ranges::any_of(entries_of(storage, tag_folder),
                             [](const Entry& entry) { return is_own_file(entry.name); });
}

std::map<std::string, std::string> find_links(const Path& folder) {
  std::map<std::string, std::string> links;
  std::error_code code;
  const Path home = std::filesystem::canonical(folder, code);
  if (code) return links;
  std::filesystem::directory_iterator entries(home, code);
  for (; !code && entries != std::filesystem::directory_iterator(); entries.increment(code)) {
    std::error_code failed;
    if (!entries->is_symlink(failed)) continue;
    const Path target = std::filesystem::canonical(entries->path(), failed);
    if (!failed && target.parent_path() == home)
      links.emplace(target.filename().string(), entries->path().filename().string());
  }
  return links;
}

void remove_checkpoint(Storage& storage, const Path& folder) {
  ignore_missing([&] {
    for (const Entry& entry : storage.list(folder)) {
      if (entry.kind == EntryKind::Directory || !is_own_file(entry.name)) continue;
      ignore_missing([&] { storage.remove_file(folder / entry.name); });
    }
    if (const auto left = find_foreign_entry(storage, folder)) {
      raise(ErrorCode::AlreadyExists,
            fmt::format("{} holds {}, which UniShard did not write", folder.native(), quote(*left)),
            "move the file away, or remove the folder yourself");
    }
    storage.remove_directory(folder);
  });
}

void remove_dead_staging(Storage& storage, const Path& folder, std::string_view name,
                         const ReportKept& report) {
  for (const Entry& entry : storage.list(folder)) {
    if (is_partial_name(entry.name) && unmarked_name(entry.name, kPartialMark) == name)
      remove_staging(storage, folder, entry, report);
  }
}

void sweep(Storage& storage, const Path& folder, const ReportKept& report) {
  const bool has_tag = has_committed_tag(storage, folder);
  for (const Entry& entry : storage.list(folder)) {
    const bool is_staging = entry.kind == EntryKind::Directory && has_tag;
    if (is_partial_name(entry.name) && (is_staging || is_old(entry))) {
      const std::string name(unmarked_name(entry.name, kPartialMark));
      if (const auto lock = OutputLock::try_beside(storage, folder / name))
        remove_staging(storage, folder, entry, report);
    } else if (is_lock_name(entry.name) && (is_old(entry) || is_silent(storage, folder, entry))) {
      const std::string name = entry.name.substr(1, entry.name.size() - 1 - kLockSuffix.size());
      OutputLock::try_beside(storage, folder / name);  // a free lock goes with its file
    }
  }
  for (const Entry& entry : storage.list(folder)) {
    if (has_mark(entry.name, kRemovedMark) && entry.kind == EntryKind::Directory)
      try_to(entry.name, report, [&] { remove_checkpoint(storage, folder / entry.name); });
  }
}

}  // namespace unishard::detail

namespace unishard {

void remove_dead_staging(Storage& storage, const Path& folder, std::string_view name) {
  detail::remove_dead_staging(storage, folder, name, [](const auto&, const auto&) {});
}

}  // namespace unishard
