#pragma once
// What the tensors of a GPT of Megatron-LM have in common: which of them no GPT lacks, and what
// their shapes tell of it.
#include "unishard/format/catalog.hpp"

#include "formats/megatron_run.hpp"

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// Returns the tensors of the whole model that `names` lack. `layers_of` is what stands before the
/// number of a layer, by which the model's other names are known.
std::vector<std::string> missing_gpt_tensors(const std::set<std::string>& names,
                                             std::string_view layers_of, const MegatronRun& run);

/// Returns whether a layer of the part has a gate: linear_fc1 has twice the rows that linear_fc2
/// has columns.
bool has_gates(const Catalog& part);

/// Returns a sentence on the first tensor of a rank's part whose shape contradicts the arguments of
/// the run, or another tensor of its layer.
std::optional<std::string> find_contradiction(const Catalog& part, const MegatronRun& run);

/// Returns the same of the whole model, all of whose layers have the same sizes, unless the run was
/// given a file with sizes of each.
std::optional<std::string> find_wrong_shape(const Catalog& whole, const MegatronRun& run);

}  // namespace unishard::converters
