#pragma once
// UniShard's own format as a Source. make_native_sink() is in sink.hpp.
#include "unishard/converters/source.hpp"

#include <memory>
#include <optional>
#include <string>

namespace unishard::converters {

/// `path` and `tag` as resolve_checkpoint() takes them.
std::unique_ptr<Source> open_native(Storage& storage, const Path& path,
                                    const std::optional<std::string>& tag);

}  // namespace unishard::converters
