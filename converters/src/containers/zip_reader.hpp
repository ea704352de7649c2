#pragma once
// The directory of a zip archive that lies in a window of a file, as torch.save and DCP write them.
// Sizes and offsets come from the central directory only; every range is checked against the window
// before use. Immutable after construction; any thread.
#include "unishard/format/storage.hpp"

#include "core/file_pool.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace unishard::converters::torch {

/// A part of a file. `file` is shared by all that read it.
struct Window {
  std::shared_ptr<const File> file;
  std::uint64_t begin = 0;
  std::uint64_t size = 0;

  std::string name() const { return file->path().string(); }
  /// Fills `out` from `offset` of the window; Corrupt when that leaves the window.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
};
Window whole_file(Storage& storage, const Path& path);
/// The same, open only while it is in use. Throws when it cannot be opened.
Window open_window(const std::shared_ptr<FilePool>& pool, const Path& path);

/// Where a zip archive that has other bytes before it begins; nullopt where there is none, and 0
/// where there is nothing before it.
std::optional<std::uint64_t> find_archive(const Window& window);

struct ZipEntry {
  std::string name;                 ///< without the archive's root folder
  std::uint64_t header_offset = 0;  ///< of the local header, in the window
  std::uint64_t stored_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
  bool deflated = false;
};

class ZipReader {
 public:
  /// Throws Corrupt or Unsupported (encrypted, several disks, other methods than stored and
  /// deflate).
  explicit ZipReader(Window window);

  const Window& window() const { return window_; }
  const std::string& root() const { return root_; }
  const std::vector<ZipEntry>& entries() const { return entries_; }
  /// False when every CRC-32 is zero: the archive was written without them.
  bool has_checksums() const { return has_checksums_; }
  const ZipEntry* find(std::string_view name) const;
  /// Where the entry's stored bytes begin in the window: reads and checks its local header.
  std::uint64_t data_offset(const ZipEntry& entry) const;
  /// The whole content, inflated, checked against its CRC-32 (unless no entry has one). Corrupt
  /// when longer than `limit_bytes`.
  std::string content(const ZipEntry& entry, std::uint64_t limit_bytes) const;
  /// The same, not compared with the CRC-32: the caller does that later.
  std::string unchecked(const ZipEntry& entry, std::uint64_t limit_bytes) const;

 private:
  void read_directory(std::uint64_t offset, std::uint64_t size, std::uint64_t count);
  void check_disjoint() const;

  Window window_;
  std::string root_;
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
  bool has_checksums_ = false;
};

}  // namespace unishard::converters::torch
