#include "formats/cut_parts.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/manifest.hpp"

#include "formats/cut_files.hpp"
#include "formats/dcp/megatron.hpp"
#include "formats/deepspeed/merge_rules.hpp"
#include "formats/deepspeed/rank_join.hpp"
#include "formats/megatron_parts.hpp"
#include "formats/meta_parts.hpp"
#include "reading/completeness.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard::converters {
namespace {

bool is_torch_name(std::string_view name) {
  return name.ends_with(".pth") || name.ends_with(".pt") || name.ends_with(".bin");
}

/// Returns the only set of cut files or folders among the names, which has `least` members or more;
/// nullopt when there is none.
std::optional<FileSet> set_of_cuts(const Path& folder, const std::vector<std::string>& names,
                                   std::size_t least) {
  std::optional<FileSet> found;
  for (FileSet& set : find_sets(names)) {
    if (set.kind != PartKind::Cuts || set.files.size() < least) continue;
    if (found) {
      raise(ErrorCode::Unsupported,
            fmt::format("{} holds two sets of parts, {} and {}", folder.string(), found->name,
                        set.name),
            "name a folder with one of them");
    }
    found = std::move(set);
  }
  if (!found) return found;
  if (found->files.begin()->first.size() != 1) {
    raise(ErrorCode::Unsupported,
          fmt::format("{}: {} are parts of pipeline stages as well, which rules for tensor "
                      "parallelism do not put together",
                      folder.string(), found->name));
  }
  if (const std::string problem = found->problem(); !problem.empty())
    raise(ErrorCode::Corrupt, fmt::format("{}: {}", folder.string(), problem));
  return found;
}

Path rank_file(Storage& storage, const Path& rank_folder) {
  if (auto file = find_rank_file(storage, rank_folder)) return *std::move(file);
  raise(ErrorCode::Corrupt, fmt::format("{}: it holds no file of a rank", rank_folder.string()));
}

bool is_meta_name(std::string_view name) {
  const auto part = parse_part_name(name);
  return part && part->writer == "Meta's Llama";
}

std::vector<Path> find_parts(Storage& storage, const Path& folder, std::size_t least) {
  std::vector<std::string> files, folders;
  for (const Entry& entry : storage.list(folder)) {
    const bool is_rank = entry.name.starts_with(kRankFolderName);
    if (entry.kind == EntryKind::File && is_torch_name(entry.name)) files.push_back(entry.name);
    if (entry.kind == EntryKind::Directory && is_rank) folders.push_back(entry.name);
  }
  std::vector<Path> parts;
  if (const auto set = set_of_cuts(folder, folders, least)) {
    for (const auto& [number, name] : set->files)
      parts.push_back(rank_file(storage, folder / name));
  } else if (const auto cut = set_of_cuts(folder, files, least)) {
    for (const auto& [number, name] : cut->files) parts.push_back(folder / name);
  }
  return parts;
}

std::unique_ptr<Source> join(Storage& storage, const Path& folder, const std::vector<Path>& files,
                             const Json& merge_rules) {
  deepspeed::MergeRules rules(merge_rules);
  deepspeed::Notes notes;
  deepspeed::CutParts parts = open_cut_files(storage, files, notes);
  if (auto unequal = unequal_part(parts)) notes.add(*std::move(unequal));
  deepspeed::CutRules cuts = rules.cut_rules();
  auto source = deepspeed::join_parts(std::move(parts), cuts, folder.string(), notes);
  rules.check(source->catalog(), folder.string());
  return source;
}

/// What Meta's and Mistral's programs write beside the files.
constexpr const char* kParams = "params.json";

Json read_params(Storage& storage, const Path& folder) {
  constexpr std::uint64_t kParamsBytes = 1 << 20;
  const Path path = folder / kParams;
  return parse_json(read_text(storage, path, kParamsBytes), path.string());
}

/// Returns none where params.json is not beside them.
std::vector<Path> find_meta_parts(Storage& storage, const Path& folder) {
  if (storage.kind(folder / kParams) != EntryKind::File) return {};
  std::vector<Path> files = find_parts(storage, folder, 1);
  if (files.empty() || !is_meta_name(files.front().filename().string())) return {};
  return files;
}

std::unique_ptr<Source> open_meta_parts(Storage& storage, const Path& folder) {
  const std::vector<Path> files = find_meta_parts(storage, folder);
  if (files.empty()) return nullptr;
  const Json params = read_params(storage, folder);
  deepspeed::Notes notes;
  deepspeed::CutParts parts = open_cut_files(storage, files, notes);
  const Catalog& first = parts.sources.front()->catalog();
  const Json rules = meta_rules(first, params, files.size(), folder.string());
  const std::vector<std::string> missing = missing_meta_tensors(first, params);
  if (!missing.empty())
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} tensors of the model are in no file, {} first", folder.string(),
                      missing.size(), unishard::quote(missing.front())),
          "use another copy of the files");
  auto source = join_by_names(std::move(parts), rules, folder.string(), notes);
  if (const auto wrong = find_wrong_meta_shape(source->catalog(), params))
    raise(ErrorCode::Corrupt, fmt::format("{}: {}", folder.string(), *wrong),
          "use another copy of the files, or the params.json of this model");
  return source;
}

/// Returns the iterations of Megatron-LM in a run that lacks the file which names the newest.
std::vector<std::string> unnamed_iterations(Storage& storage, const Path& run) {
  std::vector<std::string> names = dcp::iterations_in(storage, run);
  std::erase_if(names,
                [&](const std::string& name) { return !has_megatron_parts(storage, run / name); });
  return names;
}

/// Nothing tells which of several iterations is meant.
void refuse_run_without_latest(Storage& storage, const Path& run) {
  const std::vector<std::string> names = unnamed_iterations(storage, run);
  if (names.empty()) return;
  raise(ErrorCode::InvalidArgument,
        fmt::format("{} holds iterations of Megatron-LM and no latest_checkpointed_iteration.txt, "
                    "which names the newest",
                    run.string()),
        fmt::format("name the folder of one iteration: {}", fmt::join(names, ", ")));
}

}  // namespace

bool has_named_parts(Storage& storage, const Path& folder) {
  if (storage.kind(folder) != EntryKind::Directory) return false;
  try {
    const auto newest = dcp::latest_iteration(storage, folder);
    const Path place = newest ? *newest : folder;
    if (storage.kind(place) != EntryKind::Directory) return false;
    if (has_megatron_parts(storage, place)) return true;
    if (!newest && !unnamed_iterations(storage, folder).empty()) return true;
    return !find_meta_parts(storage, place).empty() && read_params(storage, place).is_object();
  } catch (const Error&) {
    return false;
  }
}

namespace {

/// Returns nullopt where there is no folder.
std::optional<Path> find_place(Storage& storage, const Path& folder,
                               const std::optional<std::string>& tag) {
  if (storage.kind(folder) != EntryKind::Directory) return std::nullopt;
  Path place = folder;
  if (tag) {
    validate_tag(*tag);
    place = folder / *tag;
  } else if (const auto newest = dcp::latest_iteration(storage, folder)) {
    place = *newest;
  } else {
    refuse_run_without_latest(storage, folder);
  }
  if (storage.kind(place) != EntryKind::Directory) return std::nullopt;
  return place;
}

std::unique_ptr<Source> open_named_parts(Storage& storage, const Path& place) {
  auto source = open_megatron_parts(storage, place);
  return source ? std::move(source) : open_meta_parts(storage, place);
}

}  // namespace

std::unique_ptr<Source> open_cut_parts(Storage& storage, const Path& folder,
                                       const OpenOptions& options) {
  const auto place = find_place(storage, folder, options.tag);
  if (!place) return nullptr;
  if (options.from_rank && has_named_parts(storage, *place))
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} has no copies of ranks of which one could be chosen", place->string()),
          "leave --from-rank out");
  if (options.merge_rules.is_null()) return open_named_parts(storage, *place);
  const std::vector<Path> files = find_parts(storage, *place, 2);
  if (files.empty()) return nullptr;
  return join(storage, *place, files, options.merge_rules);
}

std::optional<deepspeed::CutParts> open_silent_parts(Storage& storage, const Path& folder,
                                                     const std::optional<std::string>& tag) {
  const auto place = find_place(storage, folder, tag);
  if (!place) return std::nullopt;
  try {
    if (open_named_parts(storage, *place)) return std::nullopt;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Unsupported) throw;
  }
  const std::vector<Path> files = find_parts(storage, *place, 2);
  if (files.empty()) return std::nullopt;
  deepspeed::Notes notes;
  return open_cut_files(storage, files, notes);
}

}  // namespace unishard::converters
