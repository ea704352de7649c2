#pragma once
// Items that went through torch's stream.zstd transform: one zstd frame, or several in a row.
#include "containers/zip_reader.hpp"

#include <cstdint>
#include <string>

namespace unishard::converters::dcp {

/// All of it. Throws Corrupt for damage and when it unpacks to more than `limit_bytes`, Unsupported
/// when it unpacks to more than fits in memory.
std::string unpack_zstd(const torch::Window& window, std::uint64_t limit_bytes);

}  // namespace unishard::converters::dcp
