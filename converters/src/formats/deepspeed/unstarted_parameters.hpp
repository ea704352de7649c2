#pragma once
// Parameters of a DeepSpeed checkpoint that the optimizer lists and has no state of.
// Thread safety: pure functions.
#include "unishard/format/catalog.hpp"

#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// Returns a line about the parameters in groups of an Adam-like optimizer that have no state,
/// where other parameters have moments. Frozen and unused parameters have none either.
std::vector<std::string> doubts_about_unstarted(const Catalog& catalog);

}  // namespace unishard::converters::deepspeed
