#pragma once
// Puts the stages of a pipeline together: each has other tensors, except for tied modules.
#include "formats/deepspeed/rank_reader.hpp"

#include <vector>

namespace unishard::converters::deepspeed {

/// Returns the tensors of all stages, in their order. `stages` are those of one tensor-parallel
/// rank, at least one. A tied tensor is that of its first stage. Throws: Corrupt when the stages
/// are not of one save.
RankContent unite_stages(std::vector<RankContent> stages);

}  // namespace unishard::converters::deepspeed
