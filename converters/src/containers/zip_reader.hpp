#pragma once
// The directory of a zip archive in a window of a file, as torch.save, DCP and numpy write it.
// Sizes and offsets come from the central directory only, and every range is checked against the
// window before use.
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

/// A range of bytes of a file, which all its readers share.
struct Window {
  std::shared_ptr<const File> file;
  std::uint64_t begin = 0;
  std::uint64_t size = 0;

  std::string name() const { return file->path().string(); }
  /// Fills `out` from byte `offset` of the window.
  /// Throws: Corrupt when that exceeds the window.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
};
Window whole_file(Storage& storage, const Path& path);
/// Returns the whole file, which is open only while it is in use.
/// Throws: Error when the file cannot be opened.
Window open_window(const std::shared_ptr<FilePool>& pool, const Path& path);

/// Returns the offset at which the zip archive in `window` begins, which is not 0 when other bytes
/// precede it; nullopt when there is no archive.
std::optional<std::uint64_t> find_archive(const Window& window);

struct ZipEntry {
  std::string name;                 ///< without the archive's root folder, if it has one
  std::uint64_t header_offset = 0;  ///< offset of the local header in the window
  std::uint64_t stored_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
  bool deflated = false;
};

/// Immutable and thread-safe after construction.
class ZipReader {
 public:
  /// torch.save puts every entry into one folder, numpy puts them into none.
  enum class Root : std::uint8_t { Folder, None };
  /// Reads and checks the directory.
  /// Throws: Corrupt; Unsupported for encryption, several disks and methods other than stored and
  /// deflate; MemoryLimit.
  explicit ZipReader(Window window, Root root = Root::Folder);

  const Window& window() const { return window_; }
  /// Returns the folder of all entries; empty with Root::None.
  const std::string& root() const { return root_; }
  const std::vector<ZipEntry>& entries() const { return entries_; }
  /// Returns false when every CRC-32 is zero, because the archive was written without checksums.
  bool has_checksums() const { return has_checksums_; }
  /// Returns the entry `name`, or nullptr.
  /// Lifetime: valid as long as this object.
  const ZipEntry* find(std::string_view name) const;
  /// Returns the offset of the entry's stored bytes in the window. Reads and checks the local
  /// header.
  std::uint64_t data_offset(const ZipEntry& entry) const;
  /// Returns the content, inflated and compared with its CRC-32 unless no entry has one.
  /// Throws: Corrupt when the content is damaged or longer than `limit_bytes`.
  std::string content(const ZipEntry& entry, std::uint64_t limit_bytes) const;
  /// Does the same without comparing the CRC-32, which the caller must do later.
  std::string unchecked(const ZipEntry& entry, std::uint64_t limit_bytes) const;

 private:
  void read_directory(std::uint64_t offset, std::uint64_t size, std::uint64_t count);
  void take_off_root(std::string& name, std::uint64_t at);
  void check_disjoint() const;
  std::string full_name(const ZipEntry& entry) const;

  Window window_;
  const Root shape_;
  std::string root_;
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
  bool has_checksums_ = false;
};

}  // namespace unishard::converters::torch
