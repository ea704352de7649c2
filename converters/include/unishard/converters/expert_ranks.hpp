#pragma once
// DeepSpeed's groups of experts in a catalog's parameter groups: {"moe": true, "name":
// "ep_size_N"}, whose experts N expert ranks share.
#include "unishard/format/catalog.hpp"

#include <cstdint>

namespace unishard::converters {

/// Gives every group of experts `ranks` expert ranks, as a run with ep_size `ranks` has them:
/// groups that differ in nothing but their number of expert ranks become one. Throws:
/// InvalidArgument when no group holds experts, or for a number of 0.
void set_expert_ranks(Catalog& catalog, std::uint32_t ranks);

}  // namespace unishard::converters
