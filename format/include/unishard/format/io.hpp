#pragma once
// How payload travels between memory and disk, for the whole process. Large transfers go past the
// page cache (O_DIRECT) through reusable buffers on huge pages, where the file system can and where
// the bytes are not cached already; everything else is ordinary positioned I/O. Which way was taken
// never changes a byte of a file. See posix_file.cpp.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace unishard {

enum class IoMode : std::uint8_t {
  Auto,      ///< past the page cache, but cached bytes are read from it
  Direct,    ///< past the page cache wherever the file system supports it
  Buffered,  ///< always through the page cache
};

/// "auto", "direct", "buffered". nullopt for anything else.
std::optional<IoMode> io_mode_from_name(std::string_view name);

/// Unit of I/O past the page cache: one huge page.
inline constexpr std::size_t kBlockBytes = std::size_t{2} << 20;

struct IoOptions {
  IoMode mode = IoMode::Auto;
  /// Bytes that may be held back until a whole block (2 MiB) can be written.
  std::uint64_t write_buffer_bytes = std::uint64_t{64} << 20;
  /// Bytes under way from the disk that have no aligned place to go to; at least one block. Threads
  /// wait for each other beyond it.
  std::uint64_t read_buffer_bytes = std::uint64_t{64} << 20;

  /// As much as suits a process that is to stay below `memory_bytes`, and not more than the above.
  static IoOptions within(std::uint64_t memory_bytes, IoMode mode);
};

/// For all files that are opened from now on. Thread-safe.
void configure_io(const IoOptions& options);
IoOptions io_options();

}  // namespace unishard
