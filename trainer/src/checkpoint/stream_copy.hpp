#pragma once
// A copy that leaves the caches alone. memcpy() does so only from some tens of MiB on, and most
// tensors are smaller: it reads each line of the target before it overwrites it.
#include <cstddef>
#include <span>

namespace unishard::trainer::detail {

/// Pre: `to` has room for `from`, does not overlap it, and is aligned to 16 bytes. Any thread.
void stream_copy(std::byte* to, std::span<const std::byte> from);

}  // namespace unishard::trainer::detail
