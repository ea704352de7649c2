#pragma once
// Damage to a file that has no name.
#include "unishard/format/storage.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

namespace unishard::test {

/// Returns the path by which this process can still reach the file without a name in `folder`.
inline Path path_of_open_file(const Path& folder) {
  const std::string start = std::filesystem::canonical(folder).string() + "/";
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const Path target = std::filesystem::read_symlink(each.path(), error);
    if (!error && target.string().starts_with(start)) return each.path();
  }
  return {};
}

inline void flip_bit(const Path& path, std::uint64_t byte, int bit) {
  const auto file = posix_storage().open_for_update(path);
  std::byte value{};
  file->read_at(byte, {&value, 1});
  value ^= std::byte{1} << bit;
  file->write_at(byte, {&value, 1});
  file->close();
}

}  // namespace unishard::test
