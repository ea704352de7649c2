#pragma once
// torch.save files as a Source: a training state, or else tensors that have their paths as names
// and the state "weights". MAPPING.md tells them apart.
#include "unishard/converters/source.hpp"

#include "containers/torch_file.hpp"

namespace unishard::converters {

/// Returns true for a .pt, .pth, .bin or .ckpt file, or a folder with pytorch_model.bin or
/// pytorch_model.bin.index.json.
bool is_torch(Storage& storage, const Path& path);
std::unique_ptr<Source> open_torch(Storage& storage, const Path& path,
                                   const OpenOptions& options = {});
/// Opens a file that is parsed already. `path` is that of `file`.
std::unique_ptr<Source> open_torch_file(Storage& storage, const Path& path,
                                        const torch::TorchFile& file, const OpenOptions& options);

}  // namespace unishard::converters
