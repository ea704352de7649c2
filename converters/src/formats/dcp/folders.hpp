#pragma once
// Which files a PyTorch trainer left, and reading each arrangement of them into a StateDict.
#include "formats/dcp/state_dict.hpp"

#include <cstdint>
#include <string>

namespace unishard::converters::dcp {

enum class Layout : std::uint8_t {
  None,
  Folder,       ///< .metadata
  RankLocal,    ///< __<rank>.metadata, each with its rank's chunks
  Unfinished,   ///< data files without metadata
  Accelerate,   ///< pytorch_model_fsdp_0/ and optimizer_0/
  WholeFiles,   ///< pytorch_model_fsdp.bin and optimizer.bin
  RankFiles,    ///< torch.save files of each rank: model_world_size_2_rank_0.pt
  Safetensors,  ///< files with DCP_SHARDING_INFO, here or in sharded/
};

/// Cheap. Throws only when the path itself cannot be looked at.
Layout find_layout(Storage& storage, const Path& path);
StateDict read_state_dict(Storage& storage, const Path& path);

}  // namespace unishard::converters::dcp
