#pragma once
// The layers of a model against what its config.json counts, and against each other.
// Thread safety: pure functions.
#include "unishard/format/catalog.hpp"
#include "unishard/format/json.hpp"

#include <string>
#include <vector>

namespace unishard::converters {

/// Returns a line for each doubt about the layers of a model: config.json (of transformers) has
/// more or fewer of them than the tensors; their numbers have a gap; one layer lacks a tensor that
/// most others have, or has it in another shape.
std::vector<std::string> doubts_about_layers(const SortedJson& config, const Catalog& catalog);

/// Returns the same for an adapter, which has matrices for all layers of a model, or begins at a
/// later one: numbers with a gap, and layers that lack a matrix.
std::vector<std::string> doubts_about_adapted_layers(const Catalog& catalog);

}  // namespace unishard::converters
