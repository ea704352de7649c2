#pragma once
// PyTorch's distributed checkpoints (DCP) as Sources: a folder with .metadata and .distcp files.
#include "unishard/converters/source.hpp"

namespace unishard::converters {

namespace dcp {
struct LikeModel;
}

/// Returns true for a folder with `.metadata` or `__<rank>.metadata`, for DCP's sharded
/// safetensors, and for the parent of accelerate's `pytorch_model_fsdp_0`. Cheap; does not throw
/// for a path of another format.
bool is_dcp(Storage& storage, const Path& path);
/// Returns true for one checkpoint, false also for a folder of several (Megatron-Core, nanotron).
bool is_one_dcp(Storage& storage, const Path& path);
/// Opens the checkpoint. The tag chooses one of several (Megatron-Core, nanotron); without it, the
/// file with the number of the newest does.
/// Throws: InvalidArgument for the tag of a checkpoint that has none, or a rank where ranks have
/// saved no copies. `like` gives the names and shapes of what lies in flat parameters.
std::unique_ptr<Source> open_dcp(Storage& storage, const Path& path,
                                 const OpenOptions& options = {},
                                 const dcp::LikeModel* like = nullptr);

}  // namespace unishard::converters
