#pragma once
// pytorch_model.bin.index.json: which file of a sharded model holds which tensors.
#include "unishard/format/storage.hpp"

#include <map>
#include <set>
#include <string>

namespace unishard::converters::torch {

/// Returns the names of the tensors of each file. Files are plain names in the folder of the index.
/// Throws: Corrupt, naming the index.
std::map<std::string, std::set<std::string>> read_weight_index(Storage& storage, const Path& path);

}  // namespace unishard::converters::torch
