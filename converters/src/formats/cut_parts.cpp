#include "formats/cut_parts.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/manifest.hpp"

#include "formats/dcp/megatron.hpp"
#include "formats/deepspeed/merge_rules.hpp"
#include "formats/deepspeed/rank_join.hpp"
#include "formats/torch/reader.hpp"
#include "reading/completeness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters {
namespace {

/// Files of a rank in a folder `mp_rank_00`.
constexpr std::array<std::string_view, 2> kRankFiles = {"model_optim_rng.pt", "model_rng.pt"};
constexpr std::string_view kRankFolder = "mp_rank_";

bool is_torch_name(std::string_view name) {
  return name.ends_with(".pth") || name.ends_with(".pt") || name.ends_with(".bin");
}

/// Returns the only set of several cut files or folders among the names; nullopt when there is
/// none.
std::optional<FileSet> set_of_cuts(const Path& folder, const std::vector<std::string>& names) {
  std::optional<FileSet> found;
  for (FileSet& set : find_sets(names)) {
    if (set.kind != PartKind::Cuts || set.files.size() < 2) continue;
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
  for (const std::string_view name : kRankFiles) {
    if (storage.kind(rank_folder / name) == EntryKind::File) return rank_folder / name;
  }
  raise(ErrorCode::Corrupt,
        fmt::format("{}: {} is missing", rank_folder.string(), kRankFiles.front()));
}

std::vector<Path> find_parts(Storage& storage, const Path& folder) {
  std::vector<std::string> files, folders;
  for (const Entry& entry : storage.list(folder)) {
    const bool is_rank = entry.name.starts_with(kRankFolder);
    if (entry.kind == EntryKind::File && is_torch_name(entry.name)) files.push_back(entry.name);
    if (entry.kind == EntryKind::Directory && is_rank) folders.push_back(entry.name);
  }
  std::vector<Path> parts;
  if (const auto set = set_of_cuts(folder, folders)) {
    for (const auto& [number, name] : set->files)
      parts.push_back(rank_file(storage, folder / name));
  } else if (const auto cut = set_of_cuts(folder, files)) {
    for (const auto& [number, name] : cut->files) parts.push_back(folder / name);
  }
  return parts;
}

/// The optimizer numbers its states, and those of parts have other shapes than the parameters.
void lose_states(const Source& part, deepspeed::Notes& notes) {
  const auto states = std::ranges::count_if(part.catalog().tensors, [](const TensorInfo& tensor) {
    return !deepspeed::is_of_model(tensor);
  });
  if (states > 0)
    notes.lose(
        {Role::Optimizer, "optimizer",
         fmt::format("{} tensors beside the model in each part are not put together", states)});
}

std::unique_ptr<Source> join(Storage& storage, const Path& folder, const std::vector<Path>& files,
                             const Json& merge_rules) {
  deepspeed::MergeRules rules(merge_rules);
  deepspeed::Notes notes;
  std::set<std::pair<Role, std::string>> told;  // all parts may lose the same
  deepspeed::CutParts parts{.format = "torch", .world_size = files.size(), .has_states = false};
  for (const Path& file : files) {
    const torch::TorchFile archive(torch::whole_file(storage, file));
    require_written_name(file, archive.archive_name());
    parts.names.push_back(file.string());
    parts.sources.push_back(open_torch(storage, file, {}));
    if (parts.sources.size() == 1) lose_states(*parts.sources.front(), notes);
    for (const Loss& loss : parts.sources.back()->losses()) {
      if (told.emplace(loss.role, loss.name).second) notes.lose(loss);
    }
  }
  deepspeed::CutRules cuts = rules.cut_rules();
  auto source = deepspeed::join_parts(std::move(parts), cuts, folder.string(), notes);
  rules.check(source->catalog(), folder.string());
  return source;
}

}  // namespace

std::unique_ptr<Source> open_cut_parts(Storage& storage, const Path& folder,
                                       const OpenOptions& options) {
  if (storage.kind(folder) != EntryKind::Directory) return nullptr;
  Path place = folder;
  if (options.tag) {
    validate_tag(*options.tag);
    place = folder / *options.tag;
  } else if (const auto newest = dcp::latest_iteration(storage, folder)) {
    place = *newest;
  }
  if (storage.kind(place) != EntryKind::Directory) return nullptr;
  const std::vector<Path> files = find_parts(storage, place);
  if (files.empty()) return nullptr;
  return join(storage, place, files, options.merge_rules);
}

}  // namespace unishard::converters
