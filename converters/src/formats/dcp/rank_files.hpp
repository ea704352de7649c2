#pragma once
// Files that each rank wrote by itself with torch.save: `model_world_size_<N>_rank_<r>.pt` of verl,
// `pytorch_model_fsdp_0_rank<r>.bin` of accelerate.
#include "formats/dcp/state_dict.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace unishard::converters::dcp {

/// Files whose names differ only in the rank.
struct RankFileGroup {
  std::uint64_t world_size = 0;  ///< 0 when the names do not contain it
  std::map<std::uint64_t, Path> files;
  std::pair<std::string, std::string> doubled;  ///< names of one rank, if there are two
  /// By their names, or because they are the only ones and hold DTensors or ShardedTensors.
  bool are_models = false;
};

/// Returns the groups by the part of the name before the rank, for example
/// "model_world_size_2_rank_".
std::map<std::string, RankFileGroup> find_rank_files(Storage& storage, const Path& folder);
/// Returns true when one of the groups is a model.
bool has_rank_files(Storage& storage, const Path& folder);
/// Opens the object that torch.save wrote of a rank.
/// Throws: Unsupported where the file has the name of another.
torch::TorchFile open_rank_object(const Path& path, StateDictBuilder& builder);
/// Adds what all rank files hold to `builder`. Returns the files that were read or noted.
/// Throws: NotFound, naming the rank whose file is missing; Corrupt or Unsupported.
std::vector<Path> read_rank_files(Storage& storage, const Path& folder, StateDictBuilder& builder);

}  // namespace unishard::converters::dcp
