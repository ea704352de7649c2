#pragma once
// Enforces --memory-limit as a last resort. Readers refuse files that need too much memory and name
// the file (unishard/format/memory.hpp); memory that they do not count is refused here with
// std::bad_alloc.
#include <cstdint>

namespace unishard::cli {

/// Makes `operator new` of this program throw when all allocated memory would exceed `bytes`.
void set_heap_limit(std::uint64_t bytes);
/// Returns the limit once an allocation was refused; 0 before.
std::uint64_t exceeded_heap_limit();

}  // namespace unishard::cli
