#pragma once
// A zip archive whose entries and their sizes are known before their bytes: everything has its
// place from the start, so pieces may be written in any order by several threads. Stored entries,
// data at multiples of 64 bytes, zip64 where needed: what torch.load(mmap=True) maps.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters::torch {

class ZipWriter {
 public:
  struct Item {
    std::string name;  ///< without the root folder
    std::uint64_t bytes = 0;
  };
  /// `begin` is where the archive starts in `file`; nothing is written yet. `file` must outlive
  /// this.
  ZipWriter(File& file, std::uint64_t begin, std::string root, std::vector<Item> items);

  std::size_t size() const { return entries_.size(); }
  /// Absolute offset in the file of the item's first byte.
  std::uint64_t data_offset(std::size_t item) const { return entries_[item].data_offset; }
  /// Absolute end of the archive, directory included.
  std::uint64_t end_offset() const { return end_; }

  /// Writes bytes of an item at `offset` in it. Thread-safe; each byte exactly once, any order.
  void write(std::size_t item, std::uint64_t offset, std::span<const std::byte> bytes);
  void write(std::size_t item, std::string_view whole);
  /// Writes headers and the directory. Once, after all bytes. Throws Internal naming an item that
  /// misses bytes. Does not sync.
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
