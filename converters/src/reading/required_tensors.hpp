#pragma once
// Tensors that every model of a type has, whatever its configuration and its head.
// Thread safety: pure functions.
#include "unishard/format/catalog.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// Returns a line where a model of transformers with this `model_type` lacks tensors that all
/// models of the type have: norms and embeddings. Nothing for a type that is not known.
std::vector<std::string> doubts_about_required(std::string_view model_type, const Catalog& catalog);

}  // namespace unishard::converters
