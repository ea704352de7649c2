#include "formats/torch/weight_index.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace unishard::converters::torch {
namespace {

/// Returns the files of torch.save, except for those that their names call an optimizer's.
std::vector<std::string> model_files(Storage& storage, const Path& folder) {
  constexpr std::array<std::string_view, 3> kSuffixes = {".bin", ".pt", ".pth"};
  std::vector<std::string> names = files_with_suffix(storage, folder, kSuffixes);
  std::erase_if(names, [](const std::string& name) {
    return name.starts_with("optim") || name.starts_with("pytorch_optim");
  });
  return names;
}

}  // namespace

std::map<std::string, std::set<std::string>> read_weight_index(Storage& storage, const Path& path) {
  constexpr std::uint64_t kIndexBytes = std::uint64_t{256} << 20;
  const SortedJson index = parse_sorted_json(read_text(storage, path, kIndexBytes), path.string());
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    raise(ErrorCode::Corrupt, fmt::format("{}: no object weight_map", path.string()));
  }
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string())
      raise(ErrorCode::Corrupt, fmt::format("{}: weight_map of {} is not a file name",
                                            path.string(), unishard::quote(name)));
    const auto file = shard.get<std::string>();
    if (file.empty() || file.starts_with('.') || file.find_first_of("/\\") != std::string::npos) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: {} is not a plain file name", path.string(), unishard::quote(file)));
    }
    shards[file].insert(name);
  }
  std::vector<std::string> files;
  for (const auto& [file, names] : shards) files.push_back(file);
  if (files.empty())
    raise(ErrorCode::Corrupt, fmt::format("{}: weight_map: it names no file", path.string()));
  require_whole_index(storage, path, files);
  for (const std::string& file : files) {
    if (storage.kind(path.parent_path() / file) == EntryKind::Missing)
      raise(ErrorCode::Corrupt, fmt::format("{}: the file {} that it names is not there",
                                            path.string(), unishard::quote(file)));
  }
  return shards;
}

bool has_shards(Storage& storage, const Path& folder) {
  return std::ranges::any_of(find_sets(model_files(storage, folder)),
                             [](const FileSet& set) { return set.kind == PartKind::Shards; });
}

std::optional<FileSet> find_shards(Storage& storage, const Path& folder) {
  return choose_shards(folder, model_files(storage, folder));
}

}  // namespace unishard::converters::torch
