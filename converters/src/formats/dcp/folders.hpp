#pragma once
// Recognises the files that PyTorch trainers write, and reads each layout of them into a StateDict.
#include "unishard/converters/source.hpp"

#include "formats/dcp/state_dict.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace unishard::converters::dcp {

enum class Layout : std::uint8_t {
  None,
  Folder,       ///< .metadata
  Megatron,     ///< latest_checkpointed_iteration.txt and iter_<n>/
  RankLocal,    ///< __<rank>.metadata, each with the chunks of its rank
  Unfinished,   ///< data files without metadata
  Accelerate,   ///< pytorch_model_fsdp_0/ and optimizer_0/, finished or not
  WholeFiles,   ///< pytorch_model_fsdp.bin and optimizer.bin
  RankFiles,    ///< torch.save files of each rank: model_world_size_2_rank_0.pt
  Nanotron,     ///< checkpoint_metadata.json and model/, here or in the newest step
  Safetensors,  ///< files with DCP_SHARDING_INFO, here or in sharded/
};

/// Returns the layout of `path`, from names and a few first bytes.
/// Throws: Error when `path` itself cannot be examined.
Layout find_layout(Storage& storage, const Path& path);
/// Returns whether `path` is a folder into which dcp.save() has saved a whole checkpoint.
/// Throws: as find_layout().
bool holds_checkpoint(Storage& storage, const Path& path);
/// Reads the state dict in any layout but None and Unfinished. `from_rank` of the options is the
/// rank whose copies count where those of several ranks differ; `like` gives the names and shapes
/// of the parameters in flat ones. Throws: Corrupt, NotFound or Unsupported, naming the file;
/// InvalidArgument for a rank where there are no copies of ranks.
StateDict read_state_dict(Storage& storage, const Path& path, const OpenOptions& options = {},
                          const LikeModel* like = nullptr);

}  // namespace unishard::converters::dcp
