#pragma once
// Which file of a sharded model holds which tensors: pytorch_model.bin.index.json, or the names of
// the shards.
#include "unishard/format/storage.hpp"

#include "reading/completeness.hpp"

#include <map>
#include <optional>
#include <set>
#include <string>

namespace unishard::converters::torch {

/// Returns the names of the tensors of each file. Files are plain names in the folder of the index.
/// Throws: Corrupt, naming the index.
std::map<std::string, std::set<std::string>> read_weight_index(Storage& storage, const Path& path);

/// Returns true for a folder with files of torch.save that have the names of shards of a model,
/// whole or not.
bool has_shards(Storage& storage, const Path& folder);
/// Returns these shards.
/// Throws: what choose_shards() throws.
std::optional<FileSet> find_shards(Storage& storage, const Path& folder);

}  // namespace unishard::converters::torch
