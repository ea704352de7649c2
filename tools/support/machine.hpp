#pragma once
// What the tools need to know of the machine they run on.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <string>

namespace unishard::tools {

/// At least 1.
unsigned hardware_threads();
/// Bytes that this process may still map before it meets a limit on its address space or data
/// (`ulimit -v`, `ulimit -d`); the largest number where there is no such limit.
std::uint64_t mappable_bytes();
/// "Intel(R) Xeon(R) ...", or "unknown".
std::string cpu_name();
/// "1.10.8"
std::string hdf5_version();

/// Bytes that a file below `path` may take; `path` need not exist yet.
std::uint64_t free_bytes(const Path& path);
/// Throws NoSpace, before anything is written, when `needed_bytes` will not fit below `path`.
void require_space(const Path& path, std::uint64_t needed_bytes);

}  // namespace unishard::tools
