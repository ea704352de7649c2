#pragma once
// PyTorch's distributed checkpoints (DCP) as Sources: a folder with .metadata and .distcp files.
#include "unishard/converters/source.hpp"

namespace unishard::converters {

/// Returns true for a folder with `.metadata` or `__<rank>.metadata`, for DCP's sharded
/// safetensors, and for the parent of accelerate's `pytorch_model_fsdp_0`. Cheap; does not throw
/// for a path of another format.
bool is_dcp(Storage& storage, const Path& path);
/// Returns true for one checkpoint, false also for Megatron-Core's folder of several iterations.
bool is_one_dcp(Storage& storage, const Path& path);
/// Opens the checkpoint. The tag chooses an iteration of Megatron-Core's folder; without it, the
/// file latest_checkpointed_iteration.txt does.
/// Throws: InvalidArgument for the tag of a checkpoint that has none, or a rank where ranks have
/// saved no copies.
std::unique_ptr<Source> open_dcp(Storage& storage, const Path& path,
                                 const OpenOptions& options = {});

}  // namespace unishard::converters
