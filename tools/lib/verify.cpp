#include "lib/verify.hpp"

#include "unishard/converters/source.hpp"
#include "unishard/format/checkpoint.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/leftover.hpp"

#include "lib/native_folder.hpp"
#include "lib/verify_foreign.hpp"
#include "lib/verify_tag.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::tools {
namespace {

bool looks_like_tag(Storage& storage, const Path& folder) {
  if (storage.kind(folder / kManifestFile) != EntryKind::Missing) return true;
  const std::vector<Entry> entries = storage.list(folder);
  return std::any_of(entries.begin(), entries.end(), [](const Entry& entry) {
    return entry.name.starts_with("shard-") && entry.name.ends_with(".h5");
  });
}

/// The tag that `latest` names, when it names one that is there; anything else is a finding.
std::optional<std::string> check_latest(Storage& storage, const Path& folder,
                                        const std::vector<TagEntry>& tags, VerifyReport& report) {
  const Path path = folder / kLatestFile;
  try {
    const std::optional<std::string> latest = read_latest(storage, folder);
    if (!latest) {
      report.notes.push_back(fmt::format("{} is missing: the newest tag is used", path.string()));
      return std::nullopt;
    }
    const bool is_there = std::any_of(tags.begin(), tags.end(),
                                      [&](const TagEntry& entry) { return entry.tag == *latest; });
    if (is_there) return latest;
    report.findings.push_back(
        {.code = "latest-names-missing-tag",
         .path = path,
         .message = fmt::format("it names {}, and there is no complete checkpoint of that name",
                                quote(*latest)),
         .hint = "restore that folder, or write the tag to resume from into the file",
         .bytes = {},
         .lost = {}});
  } catch (const Error& error) {
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
    if (!is_partial_name(entry.name)) continue;
    report.notes.push_back(
        fmt::format("{} is the unfinished work of an interrupted save; the next save of the same "
                    "tag removes it",
                    (folder / entry.name).string()));
  }
}

std::vector<Path> choose_tags(Storage& storage, const Path& folder, const VerifyOptions& options,
                              VerifyReport& report) {
  const std::vector<TagEntry> tags = list_tags(storage, folder);
  const std::optional<std::string> latest = check_latest(storage, folder, tags, report);
  note_leftovers(storage, folder, report);
  if (options.tag) return {resolve_checkpoint(storage, folder, options.tag)};
  std::vector<Path> chosen;
  if (options.all_tags) {
    for (const TagEntry& entry : tags) chosen.push_back(folder / entry.tag);
  } else if (latest) {
    chosen.push_back(folder / *latest);
  } else if (!tags.empty()) {
    chosen.push_back(folder / tags.back().tag);
  }
  return chosen;
}

}  // namespace

VerifyReport verify(Storage& storage, const Path& path, const VerifyOptions& options) {
  Team alone;
  return verify(storage, path, options, alone);
}

VerifyReport verify(Storage& storage, const Path& given, const VerifyOptions& options, Team& team) {
  const Path path = without_trailing_slash(given);
  VerifyReport report;
  report.deep = options.deep;
  const bool is_folder = storage.kind(path) == EntryKind::Directory;
  if (is_folder && looks_like_tag(storage, path)) {
    // With a tag: refuses one that is not this folder's.
    verify_tag(storage, options.tag ? resolve_checkpoint(storage, path, options.tag) : path,
               options, team, report);
    return report;
  }
  const converters::Probe found = converters::probe(storage, path);
  const bool has_latest = is_folder && storage.kind(path / kLatestFile) == EntryKind::File;
  if (!found.format.empty() && found.format != "native") {
    return verify_foreign(storage, path, options, team);
  }
  if (found.format.empty() && !has_latest) {
    raise(storage.kind(path) == EntryKind::Missing ? ErrorCode::NotFound : ErrorCode::Unsupported,
          found.problem);
  }
  for (const Path& folder : choose_tags(storage, path, options, report)) {
    verify_tag(storage, folder, options, team, report);
  }
  return report;
}

}  // namespace unishard::tools
