#pragma once
// torch.save files as a Source: every tensor of the object under its path, in state "weights".
#include "unishard/converters/source.hpp"

namespace unishard::converters {

/// A .pt, .pth, .bin, .ckpt file, or a folder with pytorch_model.bin or
/// pytorch_model.bin.index.json.
bool is_torch(Storage& storage, const Path& path);
std::unique_ptr<Source> open_torch(Storage& storage, const Path& path);

}  // namespace unishard::converters
