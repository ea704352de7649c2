#pragma once
// numpy's .npz archives and .npy files as a Source. Every array has the state "weights", unless the
// archive has an embedded catalog. Pickled arrays are never read.
#include "unishard/converters/source.hpp"

#include <memory>

namespace unishard::converters {

/// Recognises an array or an archive of arrays by its first bytes, and files that are named so.
bool is_npz(Storage& storage, const Path& path);

/// Throws: Corrupt or Unsupported, naming file and array.
std::unique_ptr<Source> open_npz(Storage& storage, const Path& path);

}  // namespace unishard::converters
