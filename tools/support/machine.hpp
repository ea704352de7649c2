#pragma once
// Properties of the machine that the tools run on.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <string>

namespace unishard::tools {

/// Returns the number of hardware threads, at least 1.
unsigned hardware_threads();
/// Returns the bytes that this process may still map before it reaches a limit on its address space
/// or data (`ulimit -v`, `ulimit -d`); the largest number when there is no limit.
std::uint64_t mappable_bytes();
/// Returns the bytes of memory that programs can still take without swapping, as the kernel
/// estimates them (MemAvailable); the largest number where it does not tell.
std::uint64_t available_memory();
/// Returns, for example, "Intel(R) Xeon(R) ...", or "unknown".
std::string cpu_name();
/// Returns, for example, "1.10.8".
std::string hdf5_version();

/// Returns the free bytes for a file below `path`, which need not exist yet.
std::uint64_t free_bytes(const Path& path);
/// Throws NoSpace when fewer than `needed_bytes` bytes are free below `path`.
void require_space(const Path& path, std::uint64_t needed_bytes);

}  // namespace unishard::tools
