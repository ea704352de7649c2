#pragma once
// A .safetensors file, or a folder of them, as a Source. Every tensor has the state "weights",
// unless the file has an embedded catalog.
#include "unishard/converters/source.hpp"

#include <memory>

namespace unishard::converters {

/// Opens a file, or a folder as read_model_folder() does.
/// Throws: Corrupt or Unsupported, naming file and tensor.
std::unique_ptr<Source> open_safetensors(Storage& storage, const Path& path);

}  // namespace unishard::converters
