#include "unishard/converters/save_folder.hpp"

#include "unishard/converters/registry.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/node_shards.hpp"
#include "unishard/format/output_lock.hpp"
#include "unishard/format/staging_names.hpp"

#include "formats/dcp/folders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace unishard::converters {
namespace {

bool is_shard(const Entry& entry) {
  return entry.name.starts_with("shard-") && entry.name.ends_with(".h5");
}

bool holds_shards(Storage& storage, const Path& folder) {
  return std::ranges::any_of(storage.list(folder), is_shard);
}

/// Returns true for a dangling link as well.
bool has_entry(Storage& storage, const Path& folder, std::string_view name) {
  const std::vector<Entry> entries = storage.list(folder);
  return std::ranges::find(entries, name, &Entry::name) != entries.end();
}

/// Returns true for a part of a DCP checkpoint, which need not be whole.
bool is_dcp_part(const Entry& entry) { return entry.name.ends_with(".distcp"); }

/// Returns, for example, `(deepspeed, "global_step4")`: the format, and the content of `latest` if
/// it can be read.
std::string describe_foreign(Storage& storage, const Path& folder, const std::string& format) {
  try {
    if (const auto tag = read_latest(storage, folder))
      return fmt::format("({}, {})", format, quote(*tag));
  } catch (const Error&) {  // not a tag of ours: the format says enough
  }
  return fmt::format("({})", format);
}

/// Returns the format of another program's checkpoint at `path`; empty when there is none.
std::string foreign_format(Storage& storage, const Path& path) {
  if (dcp::holds_checkpoint(storage, path)) return "dcp";  // beside tags of ours, too
  const std::string format = probe(storage, path).format;
  return format == "native" ? "" : format;
}

std::string where_to_look(const Path& folder) {
  return fmt::format("`unishard inspect {0} --tags` and `unishard verify {0} --all` show more",
                     folder.native());
}

/// Returns what prevents a fresh start although no tag has a manifest; empty when nothing does.
std::string trace_of_checkpoints(Storage& storage, const Path& folder) {
  for (const Entry& entry : storage.list(folder)) {
    const Path path = folder / entry.name;
    if (entry.name.starts_with('.') || is_partial_name(entry.name)) continue;
    if (entry.kind == EntryKind::Closed) continue;
    if (has_mark(entry.name, kRemovedMark))
      return fmt::format("{} is a checkpoint whose removal was interrupted", path.native());
    if (entry.kind == EntryKind::Directory && holds_shards(storage, path))
      return fmt::format("{} holds shards and no manifest.json", path.native());
    if (const std::string format = foreign_format(storage, path); !format.empty())
      return fmt::format("{} is a checkpoint of another program ({})", path.native(), format);
    if (entry.kind == EntryKind::Directory && std::ranges::any_of(storage.list(path), is_dcp_part))
      return fmt::format("{} is a part of a checkpoint of another program", path.native());
  }
  return {};
}

std::string first_partial(Storage& storage, const Path& folder) {
  const std::vector<Entry> entries = storage.list(folder);
  const auto partial =
      std::ranges::find_if(entries, [](const Entry& entry) { return is_partial_name(entry.name); });
  return partial == entries.end() ? "" : partial->name;
}

/// Returns the only tag in `folder` when its save was killed before `latest` could name it: the
/// text of the file that was to become `latest` is still there. Empty for all other folders.
std::string unannounced_tag(Storage& storage, const Path& folder) {
  if (has_entry(storage, folder, kLatestFile)) return {};
  const std::vector<TagEntry> tags = list_tags(storage, folder);
  if (tags.size() != 1) return {};
  const std::string text = tags.front().tag + "\n";
  const auto is_its_text = [&](const Entry& entry) {
    return entry.kind == EntryKind::File && has_mark(entry.name, kPartialMark) &&
           unmarked_name(entry.name, kPartialMark) == kLatestFile &&
           storage.open(folder / entry.name)->size() == text.size() &&
           read_text(storage, folder / entry.name, text.size()) == text;
  };
  return std::ranges::any_of(storage.list(folder), is_its_text) ? tags.front().tag : "";
}

ResumeDecision start_fresh(Storage& storage, const Path& folder) {
  const std::string partial =
      storage.kind(folder) == EntryKind::Missing ? "" : first_partial(storage, folder);
  if (partial.empty())
    return {ResumeDecision::Action::StartFresh, false, false,
            fmt::format("no checkpoint in {} yet: starting fresh", folder.native())};
  return {ResumeDecision::Action::StartFresh, false, false,
          fmt::format("no save was ever completed in {} ({} was interrupted and is kept until one "
                      "is): starting fresh",
                      folder.native(), partial)};
}

/// Returns nullopt when the newest checkpoint can be loaded, else the reason why not.
std::optional<Error> try_newest(Storage& storage, const Path& folder, bool checks_shards) {
  try {
    const Path tag = resolve_checkpoint(storage, folder, std::nullopt);
    read_manifest(storage, tag);
    if (checks_shards) require_whole_part(storage, tag);
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Io) throw;
    return error;
  }
}

bool is_whole(Storage& storage, const Path& tag_folder) {
  try {
    require_whole_part(storage, tag_folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Returns a hint that names the newest whole checkpoints except `damaged`; empty when there is
/// none.
std::string others_to_resume(Storage& storage, const Path& folder, const std::string& damaged) {
  constexpr int kNamed = 3;
  std::vector<TagEntry> tags = list_tags(storage, folder);
  std::string hint;
  int named = 0;
  for (; !tags.empty() && named < kNamed; tags.pop_back()) {
    const std::string& tag = tags.back().tag;
    if (tag == damaged || !tags.back().problem.empty() || !is_whole(storage, folder / tag))
      continue;
    hint += named == 0
                ? fmt::format("go on from a whole checkpoint: --resume {}", (folder / tag).native())
                : fmt::format("{}{}", named == 1 ? "; older ones: " : ", ", tag);
    ++named;
  }
  return hint;
}

/// Throws or, with `fresh_beside`, decides for a fresh start when `problem` prevents a load.
ResumeDecision beside(Storage& storage, const Path& folder, bool fresh_beside,
                      const Error& problem) {
  const std::string others = others_to_resume(storage, folder, "");
  if (!others.empty()) {
    raise(problem.code(), problem.what(), fmt::format("{}; {}", others, where_to_look(folder)));
  }
  if (!fresh_beside) {
    raise(problem.code(),
          fmt::format("{}; a run does not start over where something was", problem.what()),
          fmt::format("{}; to start over, save to another folder, or with --fresh beside it: then "
                      "nothing there is replaced or removed",
                      where_to_look(folder)));
  }
  return {ResumeDecision::Action::StartFresh, true, false,
          fmt::format("{}: starting fresh beside it (--fresh)", problem.what())};
}

/// Returns the step in a planned tag's name; nullopt for any other name.
std::optional<std::int64_t> step_of(std::string_view name, const PlannedTags& planned) {
  if (!name.starts_with(planned.prefix)) return std::nullopt;
  const std::string_view digits = name.substr(planned.prefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || std::to_string(step) != digits) return std::nullopt;
  const bool is_due = planned.interval > 0 && step % planned.interval == 0;
  const bool is_planned =
      step > planned.first && step <= planned.last && (is_due || step == planned.last);
  return is_planned ? std::optional(step) : std::nullopt;
}

}  // namespace

void require_writable(Storage& storage, const Path& folder) {
  constexpr std::string_view kText = "UniShard tests whether it can write here.\n";
  make_durable_directory(storage, folder);
  const Path path = folder / (".writable-" + new_save_id());
  const auto file = storage.create(path);
  try {
    file->write_at(0, std::as_bytes(std::span(kText)));
    file->sync();
    file->close();
  } catch (const Error&) {
    storage.remove_file(path);
    throw;
  }
  storage.remove_file(path);
  storage.sync_directory(folder);
}

namespace {

/// Throws what require_own_folder() throws for UniShard's own checkpoints.
void require_no_checkpoint(Storage& storage, const Path& folder) {
  if (storage.kind(folder / kManifestFile) == EntryKind::File || holds_shards(storage, folder)) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} is one checkpoint and not a folder of checkpoints", folder.native()),
          "save to the folder that it is in, or to another one");
  }
  require_no_checkpoint_around(storage, folder);
}

/// Returns whether checkpoints of the format are files that know nothing of what lies beside them.
bool is_of_files(const std::string& format) {
  const OutputShape shape = format_entry(format).shape;
  return shape == OutputShape::File || shape == OutputShape::FileOrFolder;
}

}  // namespace

void require_own_place(Storage& storage, const Path& folder, const std::string& name) {
  if (storage.kind(folder) != EntryKind::Directory)
    return require_no_checkpoint_around(storage, folder);
  require_no_checkpoint(storage, folder);
  const std::string around = foreign_format(storage, folder);
  if (!around.empty() && !is_of_files(around)) return require_own_folder(storage, folder);
  const Path place = folder / name;
  if (storage.kind(place) == EntryKind::Missing) return;
  const std::string format = foreign_format(storage, place);
  if (format.empty()) return;
  raise(ErrorCode::AlreadyExists,
        fmt::format("{} is a checkpoint of another program ({})", place.native(), format),
        "save to another place");
}

void require_own_folder(Storage& storage, const Path& folder) {
  if (storage.kind(folder) != EntryKind::Directory)
    return require_no_checkpoint_around(storage, folder);
  require_no_checkpoint(storage, folder);
  const std::string format = foreign_format(storage, folder);
  if (!format.empty()) {
    raise(ErrorCode::AlreadyExists,
          fmt::format("{} holds a checkpoint of another program {}; UniShard does not write its "
                      "checkpoints among them",
                      folder.native(), describe_foreign(storage, folder, format)),
          fmt::format(
              "save to another folder; train_gpt goes on from it with --resume {} --save OTHER",
              folder.native()));
  }
}

void require_free_names(Storage& storage, const Path& folder, const PlannedTags& planned,
                        bool may_replace) {
  if (storage.kind(folder) == EntryKind::Missing) return;
  require_own_latest(storage, folder);
  for (const Entry& entry : storage.list(folder)) {
    if (step_of(entry.name, planned)) require_replaceable(storage, folder, entry.name, may_replace);
  }
}

ResumeDecision decide_resume(Storage& storage, const Path& folder, bool fresh_beside) {
  if (storage.kind(folder) == EntryKind::Missing) return start_fresh(storage, folder);
  require_own_folder(storage, folder);
  if (has_entry(storage, folder, kLatestFile) || !list_tags(storage, folder).empty()) {
    const auto problem = try_newest(storage, folder, fresh_beside);
    return problem ? beside(storage, folder, fresh_beside, *problem) : ResumeDecision{};
  }
  const std::string trace = trace_of_checkpoints(storage, folder);
  if (trace.empty()) return start_fresh(storage, folder);
  return beside(storage, folder, fresh_beside, Error(ErrorCode::NotFound, trace));
}

ResumeDecision decide_start(Storage& storage, const Path& folder, bool fresh_beside) {
  if (!fresh_beside) {
    const ResumeDecision decision = decide_resume(storage, folder, false);
    if (decision.action == ResumeDecision::Action::StartFresh) return decision;
    if (const std::string tag = unannounced_tag(storage, folder); !tag.empty()) {
      return {ResumeDecision::Action::StartFresh, false, false,
              fmt::format("the first save in {} was interrupted before `latest` named {}: starting "
                          "fresh",
                          folder.native(), tag)};
    }
    const Path newest = resolve_checkpoint(storage, folder, std::nullopt);
    raise(ErrorCode::AlreadyExists,
          fmt::format("{} contains the checkpoints of a run, the newest of which is {}",
                      folder.native(), newest.filename().native()),
          "continue it with --resume, save to another folder, or start at step 0 beside it with "
          "--fresh: then nothing there is replaced or removed");
  }
  if (storage.kind(folder) == EntryKind::Missing) return start_fresh(storage, folder);
  require_own_folder(storage, folder);
  const bool has_tags = !list_tags(storage, folder).empty();
  if (!has_tags && !has_entry(storage, folder, kLatestFile) &&
      trace_of_checkpoints(storage, folder).empty())
    return start_fresh(storage, folder);
  return {ResumeDecision::Action::StartFresh, true, has_tags,
          fmt::format("starting fresh beside what {} contains (--fresh)", folder.native())};
}

std::string other_checkpoints(Storage& storage, const Path& damaged) {
  const Path folder = damaged.has_filename() ? damaged : damaged.parent_path();
  try {
    return others_to_resume(storage, parent_folder(folder), folder.filename().native());
  } catch (const Error&) {  // the damage is what must be said
    return {};
  }
}

}  // namespace unishard::converters
