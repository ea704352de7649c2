#pragma once
// What the small files of a model's folder say against its tensors: signs that a file is missing,
// or is of another save. None of it is certain, so each is a remark.
// Thread safety: pure functions.
#include "unishard/format/catalog.hpp"
#include "unishard/format/storage.hpp"

#include <string>
#include <vector>

namespace unishard::converters {

/// Returns a line for each doubt about the model in `folder`: those about its layers; a causal
/// language model has no matrix for its vocabulary, or one where config.json says two; an index
/// gives another total size; a tensor that all models of the type have; one of the two matrices of
/// a low-rank adapter is missing. `catalog` is that of the whole folder. Files that cannot be read
/// tell nothing.
std::vector<std::string> doubts_about_model(Storage& storage, const Path& folder,
                                            const Catalog& catalog);

}  // namespace unishard::converters
