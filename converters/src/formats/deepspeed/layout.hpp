#pragma once
// Finds the folder that a path means and the files of each rank in it. Uses names only: no file but
// `latest` is opened.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::deepspeed {

/// Hints of errors about runs whose model was cut.
inline constexpr const char* kMergeRanks =
    "make a universal checkpoint with DeepSpeed's ds_to_universal, which is read";
inline constexpr const char* kFindStages =
    "copy it from the node that wrote it, or use another checkpoint";
inline constexpr const char* kGatherExperts =
    "load it with the program that saved it, and save the whole model there, for example with "
    "save_pretrained() or torch.save()";

enum class FileRole : std::uint8_t {
  Model,            ///< mp_rank_00_model_states.pt
  RankModel,        ///< zero_pp_rank_<r>_mp_rank_00_model_states.pt
  Optimizer,        ///< [bf16_]zero_pp_rank_<r>_mp_rank_00_optim_states.pt
  Layer,            ///< layer_<l>[-model_<t>]-model_states.pt of a pipeline
  Expert,           ///< layer_<l>_expert_<e>_mp_rank_00_model_states.pt of a mixture of experts
  ExpertOptimizer,  ///< expp_rank_<e>_mp_rank_00_optim_states.pt (stage 0)
  OldExpert,        ///< expert_<e>_mp_rank_00_model_states.pt, before DeepSpeed 0.5
  Other,
};

struct FileName {
  FileRole role = FileRole::Other;
  std::uint32_t rank = 0;        ///< rank in the data-parallel or expert-parallel group
  std::uint32_t model_rank = 0;  ///< the number after mp_rank_ or model_
  std::uint32_t layer = 0;       ///< of a pipeline, or among the layers with experts
  std::uint32_t expert = 0;

  bool operator==(const FileName&) const = default;
};
FileName parse_file_name(std::string_view name);

/// Returns the data-parallel rank that wrote a file of a regular checkpoint; 0 for the files of all
/// ranks.
std::uint32_t rank_of_file(const Path& file);

/// Returns the numbers in `name` at each "#" of `pattern`; nullopt when the name does not match.
std::optional<std::vector<std::uint32_t>> match_numbers(std::string_view pattern,
                                                        std::string_view name);

/// Returns true for a folder with DeepSpeed's rank files that is no universal checkpoint; false for
/// a missing folder.
bool is_regular_tag(Storage& storage, const Path& folder);
/// Returns true for a folder with zero/<fqn>/fp32.pt or zero/optimizer_state.pt.
bool is_universal_tag(Storage& storage, const Path& folder);

/// A kind of checkpoint folder: how to recognise a tag, and the file that names the newest one.
struct FolderKind {
  bool (*is_tag)(Storage&, const Path&);
  std::string_view latest_file;
};
inline constexpr FolderKind kRegular = {is_regular_tag, "latest"};
inline constexpr FolderKind kUniversal = {is_universal_tag, "latest_universal"};

/// Names of the sub-folders of `folder` that are tags of either kind.
std::vector<std::string> tags_of(Storage& storage, const Path& folder, const FolderKind& kind);

/// Returns whether `folder` has a latest file and a link to a tag.
bool has_linked_tag(Storage& storage, const Path& folder, const FolderKind& kind);

/// Returns the tag's folder that `path` means: `path` itself, the tag `tag` in it, the tag that the
/// latest file names, or the only tag.
/// Throws: NotFound or InvalidArgument, listing the tags that exist; Unsupported for a tag that is
/// a link out of `path`.
Path choose_tag(Storage& storage, const Path& path, const std::optional<std::string>& tag,
                const FolderKind& kind);

/// The files of one model-parallel rank, by rank in its data-parallel group.
struct RankFiles {
  /// The model file of all ranks: stages 0 to 2.
  std::optional<Path> model;
  std::vector<std::pair<std::uint32_t, Path>> rank_models;  ///< stage 3, ascending ranks
  std::vector<std::pair<std::uint32_t, Path>> optimizers;   ///< stages 1 to 3, ascending ranks

  /// Returns the model file of the first data-parallel rank; null when it is missing.
  const Path* first_model() const;
};

/// A file that is not of one rank: a layer of a pipeline, or an expert.
struct NumberedFile {
  FileName name;
  Path path;
};

/// The files of one tag.
struct TagFiles {
  Path folder;
  /// By the number after mp_rank_; at least one entry.
  std::map<std::uint32_t, RankFiles> model_ranks;
  std::vector<NumberedFile> layers;   ///< ascending tensor-parallel ranks, then layers
  std::vector<NumberedFile> experts;  ///< ascending layers, then experts
  std::vector<std::pair<std::uint32_t, Path>> expert_optimizers;  ///< ascending expert ranks
  std::optional<std::string> old_expert;  ///< name of the first file of FileRole::OldExpert
};
/// Links are followed within the folder that holds the tag.
/// Throws: Unsupported for files of DeepSpeed's Fast writer, and for links that lead outside;
/// Corrupt for links to nothing, and for two files of one rank, layer or expert.
TagFiles find_files(Storage& storage, const Path& folder);

/// Checks that `files` are those of ranks 0 to world_size - 1. Messages name the files by `what`
/// ("optimizer") and the origin of the world size by `said_by`.
/// Throws: Corrupt, listing the ranks.
void check_complete(const Path& folder, const std::vector<std::pair<std::uint32_t, Path>>& files,
                    std::uint64_t world_size, std::string_view what, std::string_view said_by);

/// Returns true for one component of a path: not empty, no separator, not "." or "..".
bool is_plain_name(std::string_view name);

}  // namespace unishard::converters::deepspeed
