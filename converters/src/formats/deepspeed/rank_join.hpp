#pragma once
// Puts the tensors of the ranks of a tensor-parallel run together.
#include "unishard/converters/source.hpp"

#include "formats/deepspeed/cut_rules.hpp"
#include "formats/deepspeed/rank_reader.hpp"

#include <memory>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// Returns a source of the whole tensors. `ranks` are the tensor-parallel ranks in order, at least
/// two. Adds to `notes` what is left out.
/// Throws: Corrupt when the ranks contradict each other, or a rule the tensors; Unsupported for a
/// rule that is not read.
std::unique_ptr<Source> join_ranks(std::vector<RankContent> ranks, CutRules& rules,
                                   const std::string& where, Notes& notes);

}  // namespace unishard::converters::deepspeed
