#pragma once
// UniShard's own format as a Source. make_native_sink() is in sink.hpp.
#include "unishard/converters/source.hpp"

#include <memory>
#include <optional>
#include <string>

namespace unishard::converters {

/// Opens the checkpoint that resolve_checkpoint() returns for `path` and `tag`.
std::unique_ptr<Source> open_native(Storage& storage, const Path& path,
                                    const std::optional<std::string>& tag);

}  // namespace unishard::converters
