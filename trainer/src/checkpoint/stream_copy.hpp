#pragma once
// A copy that bypasses the caches. memcpy() bypasses them only from some tens of MiB on; for
// smaller copies, as most tensors are, it reads each cache line of the target before overwriting
// it.
#include <cstddef>
#include <span>

namespace unishard::trainer::detail {

/// Pre: `to` has room for `from`, does not overlap it, and is aligned to 16 bytes.
/// Thread safety: pure function.
void stream_copy(std::byte* to, std::span<const std::byte> from);

}  // namespace unishard::trainer::detail
