#pragma once
// Which of Adam's two moments a universal checkpoint lacks. The reader takes these for lost, so the
// writer makes no folder that lacks one. Thread safety: pure functions.
#include "unishard/format/json.hpp"

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::deepspeed {

/// Returns the moments that no parameter of a group has and its optimizer has of each: what no
/// parameter has of Adam's was lost for all. Adagrad has the second alone and no betas; Lion the
/// first and no amsgrad; schedule-free optimizers and others have a state of their own. `states`
/// are those that any parameter of the group has.
std::vector<std::string_view> missing_moments(const Json& settings,
                                              const std::set<std::string>& states,
                                              bool has_stepped);

}  // namespace unishard::converters::deepspeed
