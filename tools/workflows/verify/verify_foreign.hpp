#pragma once
// verify() for checkpoints of other formats: they open (structure, names, sizes, coverage), and
// with --deep every element can be read and every checksum that the format has is right.
#include "workflows/verify/verify.hpp"

namespace unishard::tools {

VerifyReport verify_foreign(Storage& storage, const Path& path, const VerifyOptions& options,
                            Team& team);

}  // namespace unishard::tools
