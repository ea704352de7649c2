#pragma once
// Models that hold placeholders in the place of weights.
#include "unishard/format/catalog.hpp"
#include "unishard/format/storage.hpp"

namespace unishard::converters {

/// Throws Unsupported when most tensors of the model at `path` are weights and biases without
/// elements: under ZeRO-3 each rank keeps such placeholders, and a model that was saved without
/// being gathered consists of them.
void require_values(const Catalog& catalog, const Path& path);

}  // namespace unishard::converters
