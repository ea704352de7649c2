#include "workflows/verify/verify.hpp"

#include "unishard/converters/registry.hpp"
#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/manifest.hpp"
#include "unishard/format/staging_names.hpp"

#include "workflows/native_folder.hpp"
#include "workflows/verify/verify_foreign.hpp"
#include "workflows/verify/verify_tag.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <sstream>

namespace unishard::tools {
namespace {

bool looks_like_tag(Storage& storage, const Path& folder) {
  if (storage.kind(folder / kManifestFile) != EntryKind::Missing) return true;
  const std::vector<Entry> entries = storage.list(folder);
  return std::any_of(entries.begin(), entries.end(), [](const Entry& entry) {
    return entry.name.starts_with("shard-") && entry.name.ends_with(".h5");
  });
}

/// Returns the tag that `latest` names, if it exists; anything else is a finding.
std::optional<std::string> check_latest(Storage& storage, const Path& folder,
                                        VerifyReport& report) {
  const Path path = folder / kLatestFile;
  try {
    std::optional<std::string> latest = read_latest(storage, folder);
    if (!latest) {
      report.notes.push_back(fmt::format("{} is missing: the newest tag is used", path.string()));
      return std::nullopt;
    }
    for (std::optional<std::string> before; latest && latest != before;) {  // a writer may move it
      if (storage.kind(folder / *latest / kManifestFile) == EntryKind::File) return latest;
      before = latest;
      latest = read_latest(storage, folder);
    }
    if (!latest) return std::nullopt;
    report.findings.push_back(
        {.code = "latest-names-missing-tag",
         .path = path,
         .message = fmt::format("it names {}, and there is no complete checkpoint of that name",
                                quote(*latest)),
         .hint = "restore that folder, or write the tag to resume from into the file",
         .bytes = {},
         .lost = {}});
  } catch (const Error& error) {
    if (!blames_files(error.code())) throw;
    report.findings.push_back({.code = "latest-unreadable",
                               .path = path,
                               .message = error.what(),
                               .hint = error.hint(),
                               .bytes = {},
                               .lost = {}});
  }
  return std::nullopt;
}

void note_leftovers(Storage& storage, const Path& folder, VerifyReport& report) {
  for (const Entry& entry : storage.list(folder)) {
    if (entry.kind == EntryKind::Closed)
      report.notes.push_back(fmt::format("{} is left out: this user may not look into it",
                                         (folder / entry.name).string()));
    if (!is_partial_name(entry.name)) continue;
    report.notes.push_back(
        fmt::format("{} is the unfinished work of a save; if its writer has died, a later save to "
                    "the same name removes it",
                    (folder / entry.name).string()));
  }
}

/// A checkpoint to verify.
struct Chosen {
  std::string tag;
  std::string format;
};

/// Checks that the file `latest_file` of other programs' checkpoints names one of `folders`.
void check_foreign_latest(Storage& storage, const Path& folder, std::string_view latest_file,
                          const std::vector<converters::TagFolder>& folders, VerifyReport& report) {
  constexpr std::uint64_t kLatestBytes = 4096;
  const Path path = folder / latest_file;
  if (storage.kind(path) != EntryKind::File) return;
  std::string tag = read_text(storage, path, kLatestBytes);
  tag.erase(0, std::min(tag.find_first_not_of(" \t\r\n"), tag.size()));
  tag.erase(tag.find_last_not_of(" \t\r\n") + 1);
  const auto named = std::ranges::find(folders, tag, &converters::TagFolder::tag);
  if (named != folders.end() && !named->format.empty()) return;
  report.findings.push_back(
      {.code = "latest-names-missing-tag",
       .path = path,
       .message = fmt::format("it names {}, and there is no checkpoint of that name", quote(tag)),
       .hint = "restore that folder, or write the tag to resume from into the file",
       .bytes = {},
       .lost = {}});
}

/// Returns whether `folder` is a checkpoint or a folder of checkpoints.
bool holds_checkpoints(Storage& storage, const Path& folder) {
  return !converters::probe(storage, folder).format.empty() ||
         storage.kind(folder / kLatestFile) == EntryKind::File ||
         std::ranges::any_of(converters::list_tag_folders(storage, folder),
                             [](const auto& each) { return !each.format.empty(); });
}

/// A sub-folder with checkpoints of its own. One that cannot be read is none.
bool is_run(Storage& storage, const Path& folder) {
  try {
    return holds_checkpoints(storage, folder);
  } catch (const Error&) {
    return false;
  }
}

/// Returns every checkpoint of the folder: UniShard's in the order of their commits, then the
/// others by name.
std::vector<Chosen> choose_all(Storage& storage, const Path& folder, VerifyReport& report) {
  const std::vector<converters::TagFolder> folders = converters::list_tag_folders(storage, folder);
  const bool has_foreign = std::ranges::any_of(folders, [](const converters::TagFolder& each) {
    return !each.format.empty() && each.format != "native";
  });
  if (has_foreign) {
    for (const std::string_view name : {"latest", "latest_universal"})
      check_foreign_latest(storage, folder, name, folders, report);
  } else {
    check_latest(storage, folder, report);
  }
  note_leftovers(storage, folder, report);
  std::vector<Chosen> chosen;
  for (const TagEntry& entry : list_tags(storage, folder)) chosen.push_back({entry.tag, "native"});
  for (const auto& [tag, format, step] : folders) {
    if (std::ranges::count(chosen, tag, &Chosen::tag) > 0) continue;
    if (!format.empty()) {
      chosen.push_back({tag, format});
    } else if (!is_run(storage, folder / tag)) {
      report.notes.push_back(fmt::format(
          "{} is no checkpoint of a known format, and was not looked at", (folder / tag).string()));
    }
  }
  return chosen;
}

std::vector<Chosen> choose_tags(Storage& storage, const Path& folder, const VerifyOptions& options,
                                VerifyReport& report) {
  if (options.all_tags && !options.tag) return choose_all(storage, folder, report);
  const std::optional<std::string> latest = check_latest(storage, folder, report);
  note_leftovers(storage, folder, report);
  const auto native = [](const std::string& tag) { return std::vector{Chosen{tag, "native"}}; };
  if (options.tag)
    return native(resolve_checkpoint(storage, folder, options.tag).filename().string());
  if (latest) return native(*latest);
  const std::vector<TagEntry> tags = list_tags(storage, folder);
  return tags.empty() ? std::vector<Chosen>() : native(tags.back().tag);
}

/// Uses rank 0's list in all processes, because another process may see another state of a folder
/// that is being written to.
std::vector<Chosen> agree_on_tags(Storage& storage, const Path& folder,
                                  const VerifyOptions& options, Team& team, VerifyReport& report) {
  std::string text;  // names end with NUL, which none of them has
  team.agree("choosing the checkpoints", [&] {
    if (!team.is_first()) return;
    for (const auto& [tag, format] : choose_tags(storage, folder, options, report))
      text.append(tag).append(1, '\0').append(format).append(1, '\0');
  });
  std::istringstream names(team.gather(text).front());
  std::vector<Chosen> chosen;
  for (Chosen each; std::getline(names, each.tag, '\0') && std::getline(names, each.format, '\0');)
    chosen.push_back(each);
  return chosen;
}

void append(VerifyReport&& from, VerifyReport& to) {
  std::ranges::move(from.checked, std::back_inserter(to.checked));
  std::ranges::move(from.findings, std::back_inserter(to.findings));
  std::ranges::move(from.notes, std::back_inserter(to.notes));
}

/// Verifies one tag, and starts again when a writer has replaced it meanwhile. Returns false, and
/// reports nothing, when a writer has removed it.
bool verify_stable(Storage& storage, const Path& folder, const VerifyOptions& options, Team& team,
                   VerifyReport& report) {
  constexpr int kTries = 20;
  for (int i = 1;; ++i) {
    const std::string stamp = checkpoint_stamp(storage, folder);
    VerifyReport attempt;
    verify_tag(storage, folder, options, team, attempt);
    std::string verdict = "stays";
    if (!attempt.is_clean() && i < kTries) {
      const std::string now = checkpoint_stamp(storage, folder);
      if (now != stamp || (now.empty() && storage.kind(folder) == EntryKind::Missing))
        verdict = now.empty() ? "removed" : "replaced";
    }
    verdict = team.gather(verdict).front();
    if (verdict == "removed") return false;
    if (verdict == "replaced") continue;
    append(std::move(attempt), report);
    return true;
  }
}

constexpr std::string_view kNotVerified = "not verified: ";

/// One checkpoint of a folder in another format. A sub-folder that UniShard does not read gives a
/// note.
void verify_foreign_tag(Storage& storage, const Path& folder, const VerifyOptions& options,
                        Team& team, VerifyReport& report) {
  VerifyOptions one = options;
  one.all_tags = true;
  VerifyReport found = verify_foreign(storage, folder, one, team);
  if (!found.findings.empty() && found.findings.front().code == kUnsupported) {
    report.notes.push_back(fmt::format("{}{}", kNotVerified, found.findings.front().message));
    return;
  }
  for (CheckedTag& checked : found.checked) checked.tag = folder.filename().string();
  for (std::string& note : found.notes) note = fmt::format("{}: {}", folder.string(), note);
  append(std::move(found), report);
}

void verify_tags(Storage& storage, const Path& folder, const VerifyOptions& options, Team& team,
                 VerifyReport& report) {
  constexpr int kTries = 20;
  for (int i = 1;; ++i) {
    VerifyReport attempt;
    std::vector<Path> removed;
    for (const auto& [tag, format] : agree_on_tags(storage, folder, options, team, attempt)) {
      if (format != "native") {
        verify_foreign_tag(storage, folder / tag, options, team, attempt);
      } else if (!verify_stable(storage, folder / tag, options, team, attempt)) {
        removed.push_back(folder / tag);
      }
    }
    if (!removed.empty() && options.tag) {
      raise(ErrorCode::NotFound,
            fmt::format("{} was removed while it was verified", removed.front().string()));
    }
    if (!removed.empty() && attempt.checked.empty() && i < kTries) continue;  // `latest` has moved
    for (const Path& tag : removed) {
      attempt.notes.push_back(fmt::format("{} was removed while it was verified", tag.string()));
    }
    return append(std::move(attempt), report);
  }
}

/// Verifies the checkpoints beside a final model.
void verify_nested(Storage& storage, const Path& folder, const VerifyOptions& options, Team& team,
                   VerifyReport& report) {
  for (const auto& [name, format, step] : converters::list_sub_folders(storage, folder)) {
    if (format.empty()) continue;
    if (format == "native") {
      verify_stable(storage, folder / name, options, team, report);
    } else {
      verify_foreign_tag(storage, folder / name, options, team, report);
    }
  }
}

/// The content of a folder of several runs.
struct Runs {
  bool is_run_itself = false;
  std::vector<std::string> names;  ///< sub-folders that are no checkpoint, and hold some
};

/// Rank 0's answer, for all. A folder that is a run itself is searched only where `all` is asked
/// for.
Runs agree_on_runs(Storage& storage, const Path& folder, bool all, Team& team) {
  std::string text;  // names end with NUL, which none of them has
  team.agree("looking for runs", [&] {
    if (!team.is_first()) return;
    text = holds_checkpoints(storage, folder) ? "+" : "-";
    if (text == "+" && !all) return;
    for (const auto& [name, format, step] : converters::list_sub_folders(storage, folder)) {
      if (format.empty() && is_run(storage, folder / name)) text.append(name).append(1, '\0');
    }
  });
  text = team.gather(text).front();
  Runs runs{text.starts_with('+'), {}};
  std::istringstream names(text.substr(1));
  for (std::string name; std::getline(names, name, '\0');) runs.names.push_back(name);
  return runs;
}

/// A folder of which nothing could be looked at is not sound.
void require_something_verified(const VerifyReport& report) {
  if (!report.checked.empty() || !report.findings.empty()) return;
  for (const std::string& note : report.notes) {
    if (note.starts_with(kNotVerified)) raise(ErrorCode::Unsupported, note);
  }
}

VerifyReport verify_one(Storage& storage, const Path& path, const VerifyOptions& options,
                        Team& team) {
  if (!options.like.empty())
    converters::open_source(storage, options.like);  // its damage is not the checkpoint's
  if (!options.like.empty() || options.from_rank)
    return verify_foreign(storage, path, options, team);
  VerifyReport report;
  report.deep = options.deep;
  const bool is_folder = storage.kind(path) == EntryKind::Directory;
  if (is_folder && looks_like_tag(storage, path)) {
    // With a tag: refuses one that is not this folder's.
    const Path folder = options.tag ? resolve_checkpoint(storage, path, options.tag) : path;
    if (!verify_stable(storage, folder, options, team, report)) {
      raise(ErrorCode::NotFound,
            fmt::format("{} was removed while it was verified", folder.string()));
    }
    return report;
  }
  const auto is_known = [](const converters::TagFolder& each) { return !each.format.empty(); };
  if (options.all_tags && !options.tag &&
      std::ranges::any_of(converters::list_tag_folders(storage, path), is_known)) {
    verify_tags(storage, path, options, team, report);
    require_something_verified(report);
    return report;
  }
  const converters::Probe found = converters::probe(storage, path);
  const bool has_latest = is_folder && storage.kind(path / kLatestFile) == EntryKind::File;
  const bool is_broken = found.format.empty() && found.code == ErrorCode::Corrupt;
  const bool has_rules = found.format.empty() && !options.merge_rules.is_null();
  if (is_broken || has_rules || (!found.format.empty() && found.format != "native")) {
    report = verify_foreign(storage, path, options, team);
    if (options.all_tags && !options.tag) verify_nested(storage, path, options, team, report);
    return report;
  }
  if (found.format.empty() && !has_latest) raise(found.code, found.problem);
  verify_tags(storage, path, options, team, report);
  if (found.is_of_two)
    report.notes.push_back(
        fmt::format("only UniShard's checkpoints were verified: {}", found.problem));
  return report;
}

}  // namespace

bool VerifyReport::is_only_unread() const {
  return !findings.empty() && std::ranges::all_of(findings, [](const Finding& finding) {
    return finding.code == kNotRead;
  });
}

VerifyReport verify(Storage& storage, const Path& path, const VerifyOptions& options) {
  Team alone;
  return verify(storage, path, options, alone);
}

VerifyReport verify(Storage& storage, const Path& given, const VerifyOptions& options, Team& team) {
  const Path path = without_trailing_slash(given);
  if (!options.all_tags) {
    VerifyOptions one = options;
    one.tag.reset();
    const auto numbered = converters::find_numbered_checkpoint(storage, path, options.tag);
    const std::string chosen = team.gather(numbered.value_or(Path()).string()).front();
    if (!chosen.empty()) return verify_one(storage, chosen, one, team);
  }
  if (options.tag || storage.kind(path) != EntryKind::Directory || looks_like_tag(storage, path))
    return verify_one(storage, path, options, team);
  const Runs runs = agree_on_runs(storage, path, options.all_tags, team);
  if (!runs.is_run_itself && !runs.names.empty() && !options.all_tags) {
    raise(ErrorCode::Unsupported,
          fmt::format("{} holds no checkpoint, but folders that do: {}", path.string(),
                      fmt::join(runs.names, ", ")),
          "name one of them, or verify all of them with --all");
  }
  VerifyReport report;
  report.deep = options.deep;
  if (runs.is_run_itself || runs.names.empty()) report = verify_one(storage, path, options, team);
  for (std::size_t i = 0; options.all_tags && i < runs.names.size(); ++i)
    append(verify_one(storage, path / runs.names[i], options, team), report);
  return report;
}

}  // namespace unishard::tools
