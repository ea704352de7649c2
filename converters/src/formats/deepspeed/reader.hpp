#pragma once
// DeepSpeed's checkpoints as Sources: the ordinary ("regular") folder of ZeRO stages 0 to 3, and
// the universal folder. The layouts are those of DeepSpeed 0.19; files of DeepSpeed 0.6 and later
// are read.
#include "unishard/converters/source.hpp"

namespace unishard::converters {

/// Returns true for a folder with `latest` and tags, or a tag's folder, with *_model_states.pt.
/// Cheap; does not throw for a path of another format.
bool is_deepspeed(Storage& storage, const Path& path);
std::unique_ptr<Source> open_deepspeed(Storage& storage, const Path& path,
                                       const OpenOptions& options);

/// Returns true for a folder with `latest_universal`, or a tag's folder, with zero/<fqn>/fp32.pt.
/// Cheap; does not throw for a path of another format.
bool is_deepspeed_universal(Storage& storage, const Path& path);
std::unique_ptr<Source> open_deepspeed_universal(Storage& storage, const Path& path,
                                                 const OpenOptions& options);

}  // namespace unishard::converters
