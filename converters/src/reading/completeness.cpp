#include "reading/completeness.hpp"

#include "unishard/format/error.hpp"

#include "reading/part_names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <unordered_set>

namespace unishard::converters {
namespace {

/// Upper bound on the missing files and the sets that a message names.
constexpr std::size_t kListed = 3;

/// Of files that models are saved in.
constexpr std::array<std::string_view, 5> kModelSuffixes = {".safetensors", ".bin", ".pt", ".pth",
                                                            ".ckpt"};

bool is_numbered_from_zero(const FileSet& set) {
  return !set.files.empty() && set.files.begin()->first == std::vector<std::uint64_t>{0};
}

/// Names may count 10^18 files: only those that are there are walked over.
std::vector<std::uint64_t> first_missing(const FileSet& set) {
  std::vector<std::uint64_t> missing;
  std::uint64_t next = is_numbered_from_zero(set) ? 0 : 1;
  const auto skip_to = [&](std::uint64_t number) {
    for (; next < number && missing.size() < kListed; ++next) missing.push_back(next);
    next = number;
  };
  for (const auto& [numbers, name] : set.files) {
    if (numbers.front() < next) continue;
    skip_to(numbers.front());
    ++next;
  }
  const std::uint64_t from_one = is_numbered_from_zero(set) ? 0 : 1;
  if (next < set.expected() + from_one) skip_to(set.expected() + from_one);
  return missing;
}

/// The stems that from_pretrained of transformers and of diffusers look for, and torch.save's.
constexpr std::array<std::string_view, 3> kUsualStems = {"model-*", "diffusion_pytorch_model-*",
                                                         "pytorch_model-*"};

bool is_usual(const FileSet& set) {
  return std::ranges::any_of(kUsualStems, [&](std::string_view stem) {
    if (!set.name.starts_with(stem)) return false;
    return set.name.substr(stem.size()).starts_with("-of-") || set.name[stem.size()] == '.';
  });
}

std::string sentence_about(const FileSet& set) {
  const std::string problem = set.problem();
  return problem.empty() ? fmt::format("all {} files named like {}", set.files.size(), set.name)
                         : problem;
}

[[noreturn]] void refuse_several(const Path& folder, const std::vector<FileSet>& sets) {
  std::vector<std::string> sentences;
  for (const FileSet& set : sets) {
    if (sentences.size() < kListed) sentences.push_back(sentence_about(set));
  }
  raise(ErrorCode::Unsupported,
        fmt::format("{} holds the numbered files of {} models or saves, and no index says which "
                    "are meant: {}",
                    folder.string(), sets.size(), fmt::join(sentences, "; ")),
        "put the files of the model that is meant into a folder of their own");
}

/// Ranks are numbered from 0, and shards from 0 or, by the programs that are known, from 1: a
/// higher number is one of several, wherever they are.
bool is_further(const PartName& part) {
  const bool is_from_one =
      part.kind == PartKind::Shards && part.writer.find("several") == std::string_view::npos;
  const std::uint64_t first = is_from_one ? 1 : 0;
  return std::ranges::any_of(part.numbers, [&](auto number) { return number > first; });
}

/// Refuses a lone file with a number that the first of several does not have.
void require_first(const Path& folder, const FileSet& set) {
  const std::string& name = set.files.begin()->second;
  const auto part = parse_part_name(name);
  if (set.files.size() > 1 || set.count || !part || !is_further(*part)) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{} holds a part of a model: {} is number {} of the files named like {}, and "
                    "none of the others is here",
                    folder.string(), name, fmt::join(part->numbers, ", "), set.name),
        "bring the missing files into the folder; --part takes one file alone");
}

}  // namespace

std::uint64_t FileSet::expected() const {
  if (count) return *count;
  if (files.empty() || files.begin()->first.size() > 1) return files.size();
  const std::uint64_t last = files.rbegin()->first.front();
  return is_numbered_from_zero(*this) && last + 1 != 0 ? last + 1 : last;
}

std::string FileSet::problem() const {
  if (!doubled.empty())
    return fmt::format("{} and {} have the same number", files.begin()->second, doubled);
  const std::uint64_t wanted = expected();
  const auto& [last, last_name] = *files.rbegin();
  if (last.size() == 1 && last.front() > wanted)
    return fmt::format("{} has a number above the {} files that it counts", last_name, wanted);
  if (files.size() == wanted && first_missing(*this).empty()) return {};
  if (files.size() > wanted)
    return fmt::format("{} files are named like {}, which counts {}", files.size(), name, wanted);
  if (files.begin()->first.size() > 1)
    return fmt::format("{} of {} files named like {} are missing", wanted - files.size(), wanted,
                       name);
  return fmt::format("{} of {} files named like {} are missing (number {}{})",
                     wanted - files.size(), wanted, name, fmt::join(first_missing(*this), ", "),
                     wanted - files.size() > kListed ? ", ..." : "");
}

std::string FileSet::doubt() const {
  if (files.size() > 1)
    return fmt::format("there is no index: all {} files named like {} were read", files.size(),
                       name);
  if (count) return {};
  return fmt::format("there is no index: {} was read, and no other file is named like {}",
                     files.begin()->second, name);
}

std::vector<FileSet> find_sets(const std::vector<std::string>& names) {
  std::map<std::string, FileSet> sets;
  for (const std::string& name : names) {
    auto part = parse_part_name(name);
    if (!part) continue;
    FileSet& set = sets[part->set];
    set.name = part->set;
    set.kind = part->kind;
    set.writer = part->writer;
    set.count = part->count;
    if (!set.files.emplace(std::move(part->numbers), name).second) set.doubled = name;
  }
  std::vector<FileSet> found;
  found.reserve(sets.size());
  for (auto& [name, set] : sets) found.push_back(std::move(set));
  return found;
}

namespace {

/// Returns the file of `set` in the folder that the set lacks; empty where there is none.
std::string unlisted_file(Storage& storage, const Path& folder, const FileSet& set) {
  std::vector<std::string> names;
  for (const Entry& entry : storage.list(folder)) names.push_back(entry.name);
  for (const FileSet& found : find_sets(names)) {
    if (found.name != set.name) continue;
    for (const auto& [numbers, name] : found.files) {
      if (!set.files.contains(numbers)) return name;
    }
  }
  return {};
}

}  // namespace

void require_whole_index(Storage& storage, const Path& index,
                         const std::vector<std::string>& names) {
  for (const FileSet& set : find_sets(names)) {
    const bool says_count = set.count || !set.doubled.empty();
    const std::string problem = says_count ? set.problem() : std::string();
    if (problem.empty()) continue;
    const std::string other = unlisted_file(storage, index.parent_path(), set);
    if (!other.empty())
      raise(ErrorCode::Corrupt,
            fmt::format("{}: it lists no tensor of {}, which is in the folder: the index is "
                        "damaged, or is that of another save",
                        index.string(), quote(other)),
            std::string(kOtherIndexHint));
    raise(ErrorCode::Corrupt,
          fmt::format("{}: it does not list all files of the model: {}", index.string(), problem),
          "bring the missing files and the index that was saved with them");
  }
}

std::vector<Entry> list_content(Storage& storage, const Path& folder) {
  constexpr std::string_view kAppleDouble = "._";
  std::vector<Entry> entries = storage.list(folder);
  std::unordered_set<std::string> names;
  for (const Entry& entry : entries) names.insert(entry.name);
  std::erase_if(entries, [&](const Entry& entry) {
    return entry.name.starts_with(kAppleDouble) &&
           names.contains(entry.name.substr(kAppleDouble.size()));
  });
  return entries;
}

std::vector<std::string> files_with_suffix(Storage& storage, const Path& folder,
                                           std::span<const std::string_view> suffixes) {
  std::vector<std::string> names;
  for (const Entry& entry : list_content(storage, folder)) {
    const bool fits = std::ranges::any_of(
        suffixes, [&](std::string_view suffix) { return entry.name.ends_with(suffix); });
    // In the Hugging Face cache the files are links.
    const bool is_file =
        entry.kind == EntryKind::File ||
        (entry.kind == EntryKind::Other && storage.kind(folder / entry.name) == EntryKind::File);
    if (fits && is_file) names.push_back(entry.name);
  }
  return names;
}

Role role_of_unread_file(std::string_view name) {
  constexpr std::array<std::string_view, 11> kOthers = {
      "training_args", "optim",       "pytorch_optim", "scheduler", "scaler",       "rng_state",
      "random_states", "extra_state", "meta.pt",       "sampler",   "dl_state_dict"};
  const auto is_other = [&](std::string_view start) { return name.starts_with(start); };
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  return std::ranges::any_of(kModelSuffixes, ends) && std::ranges::none_of(kOthers, is_other)
             ? Role::OtherModel
             : Role::SideFile;
}

Losses unread_models(Storage& storage, const Path& folder, const std::vector<std::string>& read) {
  Losses losses;
  for (const std::string& name : files_with_suffix(storage, folder, kModelSuffixes)) {
    if (role_of_unread_file(name) == Role::OtherModel && std::ranges::count(read, name) == 0)
      losses.push_back({Role::OtherModel, name, "the model is read from other files"});
  }
  return losses;
}

std::optional<FileSet> choose_shards(const Path& folder, const std::vector<std::string>& names) {
  std::vector<FileSet> sets = find_sets(names);
  std::erase_if(sets, [](const FileSet& set) { return set.kind != PartKind::Shards; });
  if (sets.empty()) return std::nullopt;
  if (sets.size() > 1) {
    std::vector<FileSet> usual = sets;
    std::erase_if(usual, [](const FileSet& set) { return !is_usual(set); });
    if (usual.size() != 1) refuse_several(folder, sets);
    sets = std::move(usual);
  }
  if (const std::string problem = sets.front().problem(); !problem.empty()) {
    raise(ErrorCode::Corrupt,
          fmt::format("{} holds a part of a model: {}", folder.string(), problem),
          "bring the missing files into the folder; --part takes one file alone");
  }
  require_first(folder, sets.front());
  return std::move(sets.front());
}

namespace {

/// `files` is how many there are, `set` what they are called.
std::string words_about(const PartName& part, std::uint64_t files) {
  if (part.kind == PartKind::Cuts)
    return fmt::format("part of a model: one of {} files named like {}, number {}", files, part.set,
                       fmt::join(part.numbers, ", "));
  return fmt::format("part {} of {} files named like {}", part.numbers.front(), files, part.set);
}

}  // namespace

namespace {

/// What the name of a file or folder says, and the names beside it.
std::optional<std::string> describe_name(Storage& storage, const Path& file) {
  const auto part = parse_part_name(file.filename().string());
  if (!part || part->count == 1) return std::nullopt;
  if (part->count) return words_about(*part, *part->count);
  const Path folder = file.has_parent_path() ? file.parent_path() : Path(".");
  std::vector<std::string> names;
  try {
    for (const Entry& entry : storage.list(folder)) names.push_back(entry.name);
  } catch (const Error&) {
    return std::nullopt;  // the folder may not be listed: nothing is known of other files
  }
  for (const FileSet& set : find_sets(names)) {
    if (set.name == part->set && set.files.size() > 1) return words_about(*part, set.expected());
  }
  if (is_further(*part))
    return fmt::format("part of a model: number {} of the files named like {}",
                       fmt::join(part->numbers, ", "), part->set);
  return std::nullopt;
}

}  // namespace

void raise_copy_of_others(const Path& shard) {
  raise(ErrorCode::Corrupt,
        fmt::format("{} holds nothing but what other files of the model hold: it is a copy or a "
                    "link, and the file that belongs there is missing",
                    shard.string()));
}

void raise_written_as(const Path& file, const std::string& written) {
  raise(ErrorCode::Corrupt,
        fmt::format("{}: it was written as {}: the file was renamed, or another's copy is in its "
                    "place",
                    file.string(), unishard::quote(written)),
        "give each file the name that it was written with, or copy it again from its node");
}

void require_written_name(const Path& file, const std::string& archive_name) {
  const std::string written = archive_name + file.extension().string();
  const auto told = parse_part_name(written), own = parse_part_name(file.filename().string());
  if (told && own && told->set == own->set && told->numbers != own->numbers)
    raise_written_as(file, written);
}

std::optional<Loss> doubt_about_lone(const Path& file) {
  const auto part = parse_part_name(file.filename().string());
  if (!part || part->count || part->writer == "DeepSpeed" || is_further(*part)) return std::nullopt;
  return Loss{Role::OtherModel, part->set,
              fmt::format("by its name {} is the first of several, and no other is here: it is the "
                          "whole model only where it was saved alone",
                          file.filename().string())};
}

std::optional<std::string> describe_part(Storage& storage, const Path& file) {
  if (auto part = describe_name(storage, file)) return part;
  // Megatron-LM's ranks have folders: mp_rank_01/model_optim_rng.pt.
  const Path folder = file.parent_path();
  return folder.filename().string().starts_with("mp_rank_") ? describe_name(storage, folder)
                                                            : std::nullopt;
}

}  // namespace unishard::converters
