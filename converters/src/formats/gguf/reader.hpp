#pragma once
// A GGUF file as a Source, unquantized. Every tensor has the state "weights" and the name that it
// has in the file, unless the file has an embedded catalog. The metadata are `gguf` in the
// producer.
#include "unishard/converters/source.hpp"

#include <memory>

namespace unishard::converters {

/// Recognises the magic number.
bool is_gguf(Storage& storage, const Path& path);

/// Throws: Corrupt or Unsupported, naming file and tensor.
std::unique_ptr<Source> open_gguf(Storage& storage, const Path& path);

}  // namespace unishard::converters
