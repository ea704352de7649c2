#pragma once
// Takes flat parameters of FSDP1 apart by the names and shapes of another model (--like).
#include "formats/dcp/like_model.hpp"
#include "formats/dcp/rank_flat_files.hpp"
#include "formats/dcp/state_dict.hpp"

#include <string>
#include <vector>

namespace unishard::converters::dcp {

/// Replaces every flat parameter by the parameters in it: those of `like` that lie in its unit and
/// that no file has by themselves. What `like` has and no file, is a loss. Returns the flat
/// parameters in the order of the files.
/// Throws: InvalidArgument where there is no flat parameter, or where nothing tells the order of
/// the parameters in one; Mismatch, with both sizes, where they do not fill it.
std::vector<PlacedUnit> take_apart_like(StateDict& state, const std::string& where,
                                        const LikeModel& like, const RankFlatFiles& files);

}  // namespace unishard::converters::dcp
