#pragma once
// Items that torch's stream.zstd transform packed: one zstd frame, or several in a row.
#include "containers/zip_reader.hpp"

#include <cstdint>
#include <string>

namespace unishard::converters::dcp {

/// Returns all unpacked bytes.
/// Throws: Corrupt for damage or more than `limit_bytes`; Unsupported when they exceed what is
/// unpacked in memory.
std::string unpack_zstd(const torch::Window& window, std::uint64_t limit_bytes);

}  // namespace unishard::converters::dcp
