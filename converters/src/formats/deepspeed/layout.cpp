#include "formats/deepspeed/layout.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/staging_names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <tuple>

namespace unishard::converters::deepspeed {
namespace {

/// "#" stands for a decimal number.
struct FilePattern {
  std::string_view pattern;
  FileRole role;
  std::vector<std::uint32_t FileName::*> numbers;  ///< what each "#" is
};

const std::vector<FilePattern>& file_patterns() {
  constexpr auto kRank = &FileName::rank, kModel = &FileName::model_rank, kLayer = &FileName::layer,
                 kExpert = &FileName::expert;
  static const std::vector<FilePattern> patterns = {
      {"mp_rank_#_model_states.pt", FileRole::Model, {kModel}},
      {"zero_pp_rank_#_mp_rank_#_model_states.pt", FileRole::RankModel, {kRank, kModel}},
      {"zero_pp_rank_#_mp_rank_#_optim_states.pt", FileRole::Optimizer, {kRank, kModel}},
      {"bf16_zero_pp_rank_#_mp_rank_#_optim_states.pt", FileRole::Optimizer, {kRank, kModel}},
      {"fp16_zero_pp_rank_#_mp_rank_#_optim_states.pt", FileRole::Optimizer, {kRank, kModel}},
      // before 0.3.x
      {"zero_pp_rank_#_mp_rank_#optim_states.pt", FileRole::Optimizer, {kRank, kModel}},
      {"layer_#-model_states.pt", FileRole::Layer, {kLayer}},
      {"layer_#-model_#-model_states.pt", FileRole::Layer, {kLayer, kModel}},
      {"layer_#_expert_#_mp_rank_#_model_states.pt", FileRole::Expert, {kLayer, kExpert, kModel}},
      {"expert_#_mp_rank_#_model_states.pt", FileRole::OldExpert, {kExpert, kModel}},
      {"expp_rank_#_mp_rank_#_optim_states.pt", FileRole::ExpertOptimizer, {kRank, kModel}},
      {"expp_rank_#_mp_rank_#optim_states.pt", FileRole::ExpertOptimizer, {kRank, kModel}}};
  return patterns;
}

bool has_universal_parts(Storage& storage, const Path& zero) {
  if (storage.kind(zero) != EntryKind::Directory) return false;
  if (storage.kind(zero / "optimizer_state.pt") == EntryKind::File) return true;
  const std::vector<Entry> entries = storage.list(zero);
  const auto parameter = std::ranges::find(entries, EntryKind::Directory, &Entry::kind);
  return parameter != entries.end() &&
         storage.kind(zero / parameter->name / "fp32.pt") == EntryKind::File;
}

std::string list_tags(Storage& storage, const Path& path, const FolderKind& kind) {
  const std::vector<std::string> tags = tags_of(storage, path, kind);
  if (tags.empty()) return "there is no tag";
  std::vector<std::string> quoted;
  quoted.reserve(tags.size());
  for (const std::string& tag : tags) quoted.push_back(unishard::quote(tag));
  return fmt::format("the tags there are: {}", fmt::join(quoted, ", "));
}

/// Returns the content of the latest file without surrounding white space, as DeepSpeed reads it.
std::string latest_tag(Storage& storage, const Path& file) {
  constexpr std::uint64_t kNameBytes = 4096;
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  std::string text = read_text(storage, file, kNameBytes);
  text.erase(0, std::min(text.find_first_not_of(kSpace), text.size()));
  while (!text.empty() && kSpace.find(text.back()) != std::string_view::npos) text.pop_back();
  if (!is_plain_name(text)) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} is not the name of a folder", file.string(), unishard::quote(text)),
          "choose a checkpoint with --tag");
  }
  return text;
}

/// Returns whether `folder`, an entry of `path`, is a link to a folder outside `path`.
bool leads_outside(const Path& path, const Path& folder) {
  std::error_code code;
  if (!std::filesystem::is_symlink(folder, code)) return false;
  const Path inside = std::filesystem::canonical(path, code);
  const Path target = std::filesystem::canonical(folder, code);
  return std::mismatch(inside.begin(), inside.end(), target.begin(), target.end()).first !=
         inside.end();
}

/// No file outside the checkpoint's folder is read, unless the user names it.
void refuse_link(const Path& path, const Path& folder) {
  if (!leads_outside(path, folder)) return;
  raise(ErrorCode::Unsupported,
        fmt::format("{} is a link that leads outside {}, and links are not followed there",
                    folder.string(), path.string()),
        fmt::format("name the link itself, {}, or move the folder here", folder.string()));
}

Path tag_folder(Storage& storage, const Path& path, const std::string& tag, const FolderKind& kind,
                const std::string& named_by) {
  Path folder = path / tag;
  if (storage.kind(folder) != EntryKind::Directory) {
    raise(ErrorCode::NotFound,
          fmt::format("{}: {} does not exist, but {} names it; {}", path.string(),
                      unishard::quote(tag), named_by, list_tags(storage, path, kind)),
          "choose one of them with --tag");
  }
  refuse_link(path, folder);
  return folder;
}

void refuse_fast_writer(const Path& folder, const std::string& name) {
  if (name.find("_states.pt-") == std::string::npos) return;
  raise(ErrorCode::Unsupported,
        fmt::format("{}: {} was written by DeepSpeed's Fast checkpoint writer, whose parts are "
                    "not read",
                    folder.string(), unishard::quote(name)),
        "save with the default writer (no checkpoint.writer in the configuration)");
}

/// Returns whether an entry of a tag's folder is a file that may be read. A link is followed within
/// the folder that holds the tag.
/// Throws: Unsupported for a link that leads outside, and Corrupt for one to nothing, where they
/// have the name of a file of DeepSpeed's.
bool is_file_of_tag(Storage& storage, const Path& folder, const Entry& entry) {
  if (entry.kind != EntryKind::Other) return entry.kind == EntryKind::File;
  const Path file = folder / entry.name;
  std::error_code code;
  if (parse_file_name(entry.name).role == FileRole::Other ||
      !std::filesystem::is_symlink(file, code))
    return false;
  if (storage.kind(file) == EntryKind::Missing) {
    raise(ErrorCode::Corrupt, fmt::format("{} is a link to what is not there", file.string()),
          "copy the file that it led to, under this name");
  }
  Path tag = std::filesystem::absolute(folder).lexically_normal();
  if (!tag.has_filename()) tag = tag.parent_path();
  if (leads_outside(tag.parent_path(), file)) {
    raise(ErrorCode::Unsupported,
          fmt::format("{} is a link that leads outside {}, and links are not followed there",
                      file.string(), tag.parent_path().string()),
          "copy the folder with the files that its links lead to (cp -rL)");
  }
  return storage.kind(file) == EntryKind::File;
}

/// Sorts the files by rank.
void sort_ranks(const Path& folder, std::vector<std::pair<std::uint32_t, Path>>& files) {
  std::ranges::sort(files);
  const auto two = std::ranges::adjacent_find(files, {}, [](const auto& f) { return f.first; });
  if (two == files.end()) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: both {} and {} are the file of rank {}: the folder mixes two saves",
                    folder.string(), unishard::quote(two->second.filename().string()),
                    unishard::quote((two + 1)->second.filename().string()), two->first),
        "remove those of the older save");
}

/// Throws: Corrupt for a second file of one number: mp_rank_1 and mp_rank_01 are the same.
void take_model(RankFiles& of_rank, std::uint32_t rank, const Path& file) {
  if (of_rank.model) {
    raise(ErrorCode::Corrupt,
          fmt::format(
              "{}: both {} and {} are the model file of rank {}: the folder mixes two saves",
              file.parent_path().string(), unishard::quote(of_rank.model->filename().string()),
              unishard::quote(file.filename().string()), rank),
          "remove that of the older save");
  }
  of_rank.model = file;
}

/// Sorts the files by what their names say.
void sort_numbered(const Path& folder, std::vector<NumberedFile>& files) {
  const auto key = [](const NumberedFile& file) {
    return std::tuple(file.name.model_rank, file.name.layer, file.name.expert, file.path);
  };
  std::ranges::sort(files, {}, key);
  const auto two = std::ranges::adjacent_find(files, {}, &NumberedFile::name);
  if (two == files.end()) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: {} and {} are of the same part of the model: the folder mixes two saves",
                    folder.string(), unishard::quote(two->path.filename().string()),
                    unishard::quote((two + 1)->path.filename().string())),
        "remove those of the older save");
}

/// Returns, for example, "1, 2, 5 and 12 more".
std::string some(const std::vector<std::uint64_t>& ranks) {
  constexpr std::size_t kShown = 16;
  const std::size_t shown = std::min(kShown, ranks.size());
  const std::string text = fmt::format(
      "{}", fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return shown == ranks.size() ? text : fmt::format("{} and {} more", text, ranks.size() - shown);
}

}  // namespace

std::optional<std::vector<std::uint32_t>> match_numbers(std::string_view pattern,
                                                        std::string_view name) {
  constexpr std::size_t kDigits = 9;
  std::vector<std::uint32_t> numbers;
  std::size_t at = 0;
  for (const char c : pattern) {
    if (c != '#') {
      if (at >= name.size() || name[at++] != c) return std::nullopt;
      continue;
    }
    std::uint32_t number = 0;
    const std::size_t begin = at;
    for (; at < name.size() && name[at] >= '0' && name[at] <= '9'; ++at) {
      if (at - begin == kDigits) return std::nullopt;
      number = number * 10 + static_cast<std::uint32_t>(name[at] - '0');
    }
    if (at == begin) return std::nullopt;
    numbers.push_back(number);
  }
  if (at != name.size()) return std::nullopt;
  return numbers;
}

FileName parse_file_name(std::string_view name) {
  for (const FilePattern& row : file_patterns()) {
    const auto numbers = match_numbers(row.pattern, name);
    if (!numbers) continue;
    FileName parsed;
    parsed.role = row.role;
    for (std::size_t i = 0; i < numbers->size(); ++i) parsed.*row.numbers[i] = (*numbers)[i];
    return parsed;
  }
  return {};
}

std::uint32_t rank_of_file(const Path& file) {
  // A state that was swapped out lies in the folder of its rank.
  const auto swapped = match_numbers("rank#", file.parent_path().filename().string());
  if (swapped && file.extension() == ".swp") return swapped->front();
  return parse_file_name(file.filename().string()).rank;
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

bool is_universal_tag(Storage& storage, const Path& folder) {
  return storage.kind(folder) == EntryKind::Directory &&
         has_universal_parts(storage, folder / "zero");
}

bool is_regular_tag(Storage& storage, const Path& folder) {
  if (storage.kind(folder) != EntryKind::Directory) return false;
  const auto is_ours = [](const Entry& entry) {
    return (entry.kind == EntryKind::File || entry.kind == EntryKind::Other) &&
           parse_file_name(entry.name).role != FileRole::Other;
  };
  return std::ranges::any_of(storage.list(folder), is_ours) && !is_universal_tag(storage, folder);
}

std::vector<std::string> tags_of(Storage& storage, const Path& folder, const FolderKind& kind) {
  std::vector<std::string> tags;
  for (const Entry& entry : storage.list(folder)) {
    if (entry.kind != EntryKind::Directory || is_leftover(entry.name)) continue;
    if (kind.is_tag(storage, folder / entry.name)) tags.push_back(entry.name);
  }
  return tags;
}

bool has_linked_tag(Storage& storage, const Path& folder, const FolderKind& kind) {
  if (storage.kind(folder / kind.latest_file) != EntryKind::File) return false;
  return std::ranges::any_of(storage.list(folder), [&](const Entry& entry) {
    if (entry.kind != EntryKind::Other) return false;
    try {
      return kind.is_tag(storage, folder / entry.name);
    } catch (const Error&) {  // a link to what this process may not look into
      return false;
    }
  });
}

Path choose_tag(Storage& storage, const Path& path, const std::optional<std::string>& tag,
                const FolderKind& kind) {
  if (tag && !is_plain_name(*tag)) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} is not the name of a tag", unishard::quote(*tag)));
  }
  if (kind.is_tag(storage, path)) {
    if (!tag || path.filename() == *tag) return path;
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} is one checkpoint, not a folder of tags", path.string()),
          "leave --tag away, or name the folder above it");
  }
  if (tag) return tag_folder(storage, path, *tag, kind, "--tag");
  const Path latest = path / kind.latest_file;
  if (storage.kind(latest) == EntryKind::File) {
    return tag_folder(storage, path, latest_tag(storage, latest), kind,
                      std::string(kind.latest_file));
  }
  const std::vector<std::string> tags = tags_of(storage, path, kind);
  if (tags.size() == 1) return path / tags.front();
  raise(tags.empty() ? ErrorCode::NotFound : ErrorCode::InvalidArgument,
        fmt::format("{}: no file {} says which checkpoint is meant; {}", path.string(),
                    kind.latest_file, list_tags(storage, path, kind)),
        "choose one with --tag");
}

const Path* RankFiles::first_model() const {
  if (model) return &*model;
  const bool has_first = !rank_models.empty() && rank_models.front().first == 0;
  return has_first ? &rank_models.front().second : nullptr;
}

TagFiles find_files(Storage& storage, const Path& folder) {
  TagFiles files;
  files.folder = folder;
  files.model_ranks[0];
  for (const Entry& entry : storage.list(folder)) {
    if (!is_file_of_tag(storage, folder, entry)) continue;
    refuse_fast_writer(folder, entry.name);
    const FileName parsed = parse_file_name(entry.name);
    const Path file = folder / entry.name;
    switch (parsed.role) {
      case FileRole::Layer:
        files.layers.push_back({parsed, file});
        break;
      case FileRole::Expert:
        files.experts.push_back({parsed, file});
        break;
      case FileRole::ExpertOptimizer:
        files.expert_optimizers.emplace_back(parsed.rank, file);
        break;
      case FileRole::OldExpert:
        if (!files.old_expert) files.old_expert = entry.name;
        break;
      case FileRole::Model:
        take_model(files.model_ranks[parsed.model_rank], parsed.model_rank, file);
        break;
      case FileRole::RankModel:
        files.model_ranks[parsed.model_rank].rank_models.emplace_back(parsed.rank, file);
        break;
      case FileRole::Optimizer:
        files.model_ranks[parsed.model_rank].optimizers.emplace_back(parsed.rank, file);
        break;
      case FileRole::Other:
        break;
    }
  }
  for (auto& [model_rank, of_rank] : files.model_ranks) {
    sort_ranks(folder, of_rank.rank_models);
    sort_ranks(folder, of_rank.optimizers);
  }
  sort_numbered(folder, files.layers);
  sort_numbered(folder, files.experts);
  sort_ranks(folder, files.expert_optimizers);
  return files;
}

void check_complete(const Path& folder, const std::vector<std::pair<std::uint32_t, Path>>& files,
                    std::uint64_t world_size, std::string_view what, std::string_view said_by) {
  if (world_size == 0 || world_size > limits::kWorldSize) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} says {} ranks; 1 to {} are possible", folder.string(), said_by,
                      world_size, limits::kWorldSize));
  }
  std::vector<std::uint64_t> missing, surplus;
  std::uint64_t next = 0;
  for (const auto& [rank, file] : files) {
    for (; next < rank && next < world_size; ++next) missing.push_back(next);
    if (rank >= world_size) surplus.push_back(rank);
    next = std::uint64_t{rank} + 1;
  }
  for (; next < world_size; ++next) missing.push_back(next);
  if (!missing.empty()) {
    raise(
        ErrorCode::Corrupt,
        fmt::format("{}: the {} files of rank {} are missing ({} says {} ranks, {} files are here)",
                    folder.string(), what, some(missing), said_by, world_size, files.size()),
        "copy them from the nodes that wrote them, or use another checkpoint");
  }
  if (!surplus.empty()) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} files of rank {} are left from another save ({} says {} ranks)",
                      folder.string(), what, some(surplus), said_by, world_size),
          "remove them, if the run that saved last had that many ranks");
  }
}

}  // namespace unishard::converters::deepspeed
