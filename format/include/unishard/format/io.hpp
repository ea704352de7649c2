#pragma once
// Process-wide options of file I/O. Large transfers bypass the page cache (O_DIRECT) through
// reusable buffers on huge pages where the file system supports it; all other transfers are
// ordinary positioned I/O. The choice never changes a byte of a file. posix_file.cpp implements it.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace unishard {

enum class IoMode : std::uint8_t {
  Auto,      ///< bypass the page cache, but read cached bytes from it
  Direct,    ///< bypass the page cache wherever the file system supports it
  Buffered,  ///< always use the page cache
};

/// Reads "auto", "direct" or "buffered"; nullopt for anything else.
std::optional<IoMode> io_mode_from_name(std::string_view name);

/// Unit of I/O that bypasses the page cache: one huge page.
inline constexpr std::size_t kBlockBytes = std::size_t{2} << 20;

struct IoOptions {
  IoMode mode = IoMode::Auto;
  /// Upper bound, for the process, on bytes that are held back until a whole block (2 MiB) can be
  /// written.
  std::uint64_t write_buffer_bytes = std::uint64_t{64} << 20;
  /// Upper bound, for the process, on bytes being read through aligned blocks because the caller's
  /// memory is not aligned; at least one block. Beyond it, threads wait for each other.
  std::uint64_t read_buffer_bytes = std::uint64_t{64} << 20;

  /// Returns options for a process whose memory is limited to `memory_bytes`; no buffer exceeds its
  /// default.
  static IoOptions within(std::uint64_t memory_bytes, IoMode mode);
};

/// Sets the options of all files that are opened afterwards. Thread-safe.
void configure_io(const IoOptions& options);
/// Returns the options that configure_io() set last. Thread-safe.
IoOptions io_options();

}  // namespace unishard
