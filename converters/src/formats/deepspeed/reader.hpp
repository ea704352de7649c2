#pragma once
// DeepSpeed's checkpoints as Sources: the ordinary ("regular") folder of ZeRO stage 0 to 3, and the
// universal folder. The layouts are those of DeepSpeed 0.19; older files are read as far back as
// 0.6.
#include "unishard/converters/source.hpp"

namespace unishard::converters {

/// A folder with `latest` and tags, or one tag's folder, with *_model_states.pt in it. Cheap; never
/// throws for a path of another format.
bool is_deepspeed(Storage& storage, const Path& path);
std::unique_ptr<Source> open_deepspeed(Storage& storage, const Path& path,
                                       const std::optional<std::string>& tag);

/// A folder with `latest_universal`, or one tag's folder, with zero/<fqn>/fp32.pt in it.
bool is_deepspeed_universal(Storage& storage, const Path& path);
std::unique_ptr<Source> open_deepspeed_universal(Storage& storage, const Path& path,
                                                 const std::optional<std::string>& tag);

}  // namespace unishard::converters
