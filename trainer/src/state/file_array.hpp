#pragma once
// An array of bytes in the blocks of a BlockFile.
#include "state/block_file.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace unishard::trainer::detail {

/// Thread-safe for ranges that do not overlap.
class FileArray {
 public:
  /// Begins as zeros. The space is reserved.
  /// Throws: NoSpace.
  FileArray(std::shared_ptr<BlockFile> file, std::uint64_t bytes);

  std::uint64_t bytes() const { return bytes_; }
  BlockFile& file() const { return *file_; }
  std::size_t blocks() const { return blocks_.size(); }

  /// Throws: Corrupt when the file does not return what was written.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  /// Writes of whole blocks need not read what is there.
  void write(std::uint64_t offset, std::span<const std::byte> bytes);

  /// Returns an array that keeps the present values. The two share their blocks until one of them
  /// is written to, which takes other blocks; BlockFile::make_free() reserves their space.
  std::shared_ptr<FileArray> snapshot() const;
  /// Takes over the values of `other`, which must not be used after. Neither reads nor writes.
  /// Pre: `other` was a snapshot of this array, and nothing reads or writes either.
  void take(FileArray& other);

 private:
  using BlockPtr = BlockFile::BlockPtr;

  std::uint64_t length_of(std::size_t index) const;
  void write_part(std::size_t index, std::uint64_t at, std::span<const std::byte> bytes);
  std::vector<BlockPtr> own_blocks(std::size_t first, std::size_t count);

  std::shared_ptr<BlockFile> file_;
  std::uint64_t bytes_;
  mutable std::mutex mutex_;
  std::vector<BlockPtr> blocks_;
};

}  // namespace unishard::trainer::detail
