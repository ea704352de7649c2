#pragma once
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace unishard::tools {

/// Writes all bytes to a descriptor. Returns the error number of a write that failed, or 0.
inline int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return 0;
}

}  // namespace unishard::tools
