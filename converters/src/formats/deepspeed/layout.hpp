#pragma once
// Which folder a path means, and which files of it belong to which rank. Names only: no file but
// `latest` is opened.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::deepspeed {

enum class FileRole : std::uint8_t {
  Model,      ///< mp_rank_00_model_states.pt
  RankModel,  ///< zero_pp_rank_<r>_mp_rank_00_model_states.pt
  Optimizer,  ///< [bf16_]zero_pp_rank_<r>_mp_rank_00_optim_states.pt
  Layer,      ///< layer_<l>-model_states.pt, of a pipeline
  Expert,     ///< a file of mixture-of-experts layers
  Other,
};

struct FileName {
  FileRole role = FileRole::Other;
  std::uint32_t rank = 0;        ///< in the data-parallel group
  std::uint32_t model_rank = 0;  ///< the number after mp_rank_
};
FileName parse_file_name(std::string_view name);

/// The numbers that stand for the "#" of `pattern` in `name`; nullopt when it does not look like
/// it.
std::optional<std::vector<std::uint32_t>> match_numbers(std::string_view pattern,
                                                        std::string_view name);

/// Has rank files of DeepSpeed in it, and is no universal checkpoint. False for a missing folder.
bool is_regular_tag(Storage& storage, const Path& folder);
/// Has zero/<fqn>/fp32.pt or zero/optimizer_state.pt in it.
bool is_universal_tag(Storage& storage, const Path& folder);

/// A kind of checkpoint folder: how to tell a tag, and the file that names the newest.
struct FolderKind {
  bool (*is_tag)(Storage&, const Path&);
  std::string_view latest_file;
};
inline constexpr FolderKind kRegular = {is_regular_tag, "latest"};
inline constexpr FolderKind kUniversal = {is_universal_tag, "latest_universal"};

/// Names of the sub-folders of `folder` that are tags of either kind.
std::vector<std::string> tags_of(Storage& storage, const Path& folder, const FolderKind& kind);

/// The tag's folder that `path` means: itself, the one called `tag`, the one that the latest file
/// names, or the only one. Throws NotFound or InvalidArgument listing the tags that are there.
Path choose_tag(Storage& storage, const Path& path, const std::optional<std::string>& tag,
                const FolderKind& kind);

/// The files of one tag, by rank. Throws Unsupported for tensor, pipeline and expert parallelism,
/// Corrupt for two files of one rank.
struct RankFiles {
  Path folder;
  std::optional<Path> model;                                ///< of all ranks: stages 0 to 2
  std::vector<std::pair<std::uint32_t, Path>> rank_models;  ///< stage 3, ascending ranks
  std::vector<std::pair<std::uint32_t, Path>> optimizers;   ///< stages 1 to 3, ascending ranks
};
RankFiles find_rank_files(Storage& storage, const Path& folder);

/// Throws Corrupt listing the ranks unless `files` are those of ranks 0 to world_size - 1.
/// `what`: "optimizer"; `said_by`: who gives the world size.
void check_complete(const Path& folder, const std::vector<std::pair<std::uint32_t, Path>>& files,
                    std::uint64_t world_size, std::string_view what, std::string_view said_by);

/// True for one component of a path: not empty, no separator, not "." or "..".
bool is_plain_name(std::string_view name);

}  // namespace unishard::converters::deepspeed
