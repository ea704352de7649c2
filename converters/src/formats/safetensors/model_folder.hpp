#pragma once
// Chooses the files of a folder that make up a safetensors model, in the order in which
// `from_pretrained` looks: model.safetensors, model.safetensors.index.json, then a single index or
// a single file of any name.
#include "unishard/format/storage.hpp"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::safetensors {

struct ModelFolder {
  std::vector<std::string> files;                 ///< bare names, sorted
  std::optional<std::string> index;               ///< name of the index that lists them
  std::map<std::string, std::string> weight_map;  ///< tensor name -> file, when there is an index
  std::vector<std::string> notes;
};

/// Returns true when read_model_folder() would find any candidate file.
bool is_model_folder(Storage& storage, const Path& folder);

/// Throws: Corrupt for a bad index or one that leads out of the folder; Unsupported for an
/// ambiguous folder.
ModelFolder read_model_folder(Storage& storage, const Path& folder);

}  // namespace unishard::converters::safetensors
