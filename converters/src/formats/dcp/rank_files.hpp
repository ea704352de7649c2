#pragma once
// Files that every rank wrote with torch.save for itself: `model_world_size_<N>_rank_<r>.pt` as
// verl calls them, `pytorch_model_fsdp_0_rank<r>.bin` as accelerate does.
#include "formats/dcp/state_dict.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace unishard::converters::dcp {

/// Files that differ in their rank only, by rank.
struct RankFileGroup {
  std::uint64_t world_size = 0;  ///< 0: the names do not say
  std::map<std::uint64_t, Path> files;
};

/// By what comes before the rank: "model_world_size_2_rank_".
std::map<std::string, RankFileGroup> find_rank_files(Storage& storage, const Path& folder);
/// True when there is a model among them.
bool has_rank_files(Storage& storage, const Path& folder);
/// Returns the files that were read or noted. Throws NotFound naming the rank whose file is
/// missing.
std::vector<Path> read_rank_files(Storage& storage, const Path& folder, StateDictBuilder& builder);

}  // namespace unishard::converters::dcp
