#pragma once
#include "workflows/verify/verify.hpp"

#include <string_view>

namespace unishard::tools {

/// The code of the finding about a checkpoint that UniShard does not read.
inline constexpr std::string_view kUnsupported = "unsupported";

/// Verifies a checkpoint of another format: it opens (structure, names, sizes, coverage) and, with
/// --deep, every element can be read and every checksum of the format is correct.
VerifyReport verify_foreign(Storage& storage, const Path& path, const VerifyOptions& options,
                            Team& team);

}  // namespace unishard::tools
