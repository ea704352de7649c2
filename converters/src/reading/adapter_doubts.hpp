#pragma once
// The matrices of a low-rank adapter (PEFT) against each other and against adapter_config.json.
// Thread safety: a pure function.
#include "unishard/format/catalog.hpp"
#include "unishard/format/json.hpp"

#include <optional>
#include <string>
#include <vector>

namespace unishard::converters {

/// Returns a line for each doubt: one of the two matrices of a module is missing, or they have no
/// product; a module, trained tokens or the shared projections that `config` (nullopt: there is
/// none) lists have nothing here, or a bias alone; a layer lacks what the others have.
std::vector<std::string> doubts_about_adapter(const std::optional<SortedJson>& config,
                                              const Catalog& catalog);

}  // namespace unishard::converters
