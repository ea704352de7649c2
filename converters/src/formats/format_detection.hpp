#pragma once
// What can be told of a path from names and first bytes alone, for messages that say what a thing
// is instead of what it is not.
#include "unishard/format/storage.hpp"

#include <optional>
#include <string>

namespace unishard::converters {

/// A format that UniShard recognises and does not read.
struct ForeignFormat {
  std::string name;  ///< "deepspeed"
  std::string text;  ///< "a DeepSpeed checkpoint (ZeRO, files like zero_pp_rank_0_...)"
};

/// Looks at a folder, at the tag that its `latest` names, and at its sub-folders; or at a file's
/// first bytes.
std::optional<ForeignFormat> recognise_foreign(Storage& storage, const Path& path);

/// Why a path that nothing recognised cannot be read: missing, empty, only interrupted saves, a
/// part of a native checkpoint, or plainly unknown.
std::string explain_unknown(Storage& storage, const Path& path);

}  // namespace unishard::converters
