#pragma once
// Writes a zip archive whose entries and their sizes are known in advance. Every byte has its
// offset from the start, so several threads may write pieces in any order. Entries are stored, data
// begins at multiples of 64 bytes, and zip64 is used where needed, so torch.load(mmap=True) can map
// the archive.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// Thread safety: write() is thread-safe, finish() is not.
class ZipWriter {
 public:
  struct Item {
    std::string name;  ///< without the root folder
    std::uint64_t bytes = 0;
  };
  /// Plans an archive that begins at byte `begin` of `file`, with all items in the folder `root`,
  /// or in none when `root` is empty. Writes nothing. Lifetime: `file` must outlive this object.
  /// Throws: Unsupported when a name is longer than 65535 bytes.
  ZipWriter(File& file, std::uint64_t begin, std::string root, std::vector<Item> items);

  std::size_t size() const { return entries_.size(); }
  /// Returns the offset in the file of the item's first byte.
  std::uint64_t data_offset(std::size_t item) const { return entries_[item].data_offset; }
  /// Returns the end of the archive in the file, including the directory.
  std::uint64_t end_offset() const { return end_; }

  /// Writes bytes of an item from byte `offset` on. Each byte must be written exactly once, in any
  /// order. Thread-safe.
  void write(std::size_t item, std::uint64_t offset, std::span<const std::byte> bytes);
  void write(std::size_t item, std::string_view whole);
  /// Writes headers and directory. Does not sync. Call it once, after all bytes.
  /// Throws: Internal, naming an item of which bytes were not written.
  void finish();

 private:
  struct Piece {
    std::uint64_t offset = 0, bytes = 0;
    std::uint32_t crc32 = 0;
  };
  struct Entry {
    std::string name;                                             // with the root
    std::uint64_t bytes = 0, header_offset = 0, data_offset = 0;  // absolute
    std::vector<Piece> pieces;
  };
  std::uint32_t checksum(Entry& entry) const;
  std::string local_header(const Entry& entry, std::uint32_t crc32) const;
  std::string directory_entry(const Entry& entry, std::uint32_t crc32) const;
  std::string end_records(std::uint64_t directory_offset, std::uint64_t directory_bytes) const;

  File& file_;
  std::uint64_t begin_ = 0, directory_ = 0, end_ = 0;
  std::vector<Entry> entries_;
  std::mutex mutex_;
};

}  // namespace unishard::converters::torch
