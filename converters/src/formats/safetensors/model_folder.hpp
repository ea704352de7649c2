#pragma once
// Chooses the files of a folder that make up a safetensors model, in the order in which
// `from_pretrained` looks: model.safetensors, model.safetensors.index.json, then a single index,
// numbered shards without an index, or a single file of any name.
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

  /// The names alone say that the files belong together: no index lists their tensors.
  bool is_joined_by_names() const { return !index && files.size() > 1; }
};

/// Returns true when read_model_folder() would find any candidate file. A file that is called
/// neither like a model nor like a shard of one is none beside a model of torch.save
/// (pytorch_model.bin): it may be an adapter or a head.
bool is_model_folder(Storage& storage, const Path& folder);

/// Throws: Corrupt for a bad index, one that leads out of the folder, and shards of which some are
/// missing; Unsupported for an ambiguous folder.
ModelFolder read_model_folder(Storage& storage, const Path& folder);

}  // namespace unishard::converters::safetensors
