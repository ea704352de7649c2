#pragma once
// A file of equal blocks for training state that does not fit into memory. The file has no name, so
// it is gone when the process ends, however it ends, and no other run can touch it.
#include "unishard/format/storage.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

namespace unishard::trainer::detail {

/// Returns `bytes`, rounded up to whole pages, of which there is at least one.
std::uint64_t whole_pages(std::uint64_t bytes);

/// Thread-safe for different blocks.
class BlockFile : public std::enable_shared_from_this<BlockFile> {
 public:
  /// The place of a block. It begins as zeros. The destructor gives the place back.
  class Block {
   public:
    Block(std::shared_ptr<BlockFile> file, std::uint64_t offset)
        : file_(std::move(file)), offset_(offset) {}
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

   private:
    friend class BlockFile;
    std::shared_ptr<BlockFile> file_;
    std::uint64_t offset_;
    std::uint64_t crc64_ = 0;
    std::size_t written_ = 0;  ///< bytes; zero before the first write
  };
  using BlockPtr = std::shared_ptr<Block>;

  /// Creates the file in `folder`, which is created if it is missing. `block_bytes` is rounded up
  /// to whole pages. A call that reads or writes several blocks does it on up to `threads` threads.
  /// Throws: Io and similar, naming the folder.
  static std::shared_ptr<BlockFile> make(Storage& storage, const Path& folder,
                                         std::uint64_t block_bytes, std::size_t threads = 1);

  const Path& folder() const { return folder_; }
  std::uint64_t block_bytes() const { return block_bytes_; }
  /// Returns blocks whose space is reserved.
  /// Throws: NoSpace; then nothing is taken.
  std::vector<BlockPtr> allocate(std::size_t count);
  /// Reserves the space of blocks that later calls of allocate() take.
  /// Throws: NoSpace.
  void make_free(std::size_t count);

  /// Writes `bytes` to blocks, which all but the last one fill.
  void write(std::span<const BlockPtr> blocks, std::span<const std::byte> bytes);
  /// Reads what the blocks have, of which all but the last one are read whole.
  /// Throws: Corrupt when the file does not return what was written.
  void read(std::span<const BlockPtr> blocks, std::span<std::byte> out) const;

 private:
  BlockFile(Path folder, std::unique_ptr<File> file, std::uint64_t block_bytes,
            std::size_t threads);
  void grow(std::size_t blocks);
  void write_some(std::span<const BlockPtr> blocks, std::span<const std::byte> bytes);
  void read_some(std::span<const BlockPtr> blocks, std::span<std::byte> out) const;
  void write_pages(std::uint64_t offset, std::span<const std::byte> bytes);
  std::size_t run_length(std::span<const BlockPtr> blocks) const;
  void check(const Block& block, std::span<const std::byte> bytes) const;

  const Path folder_;
  const std::unique_ptr<File> file_;
  const std::uint64_t block_bytes_;
  const std::size_t threads_;
  mutable std::shared_mutex growing_;  ///< shared by transfers
  std::mutex free_mutex_;
  std::vector<std::uint64_t> free_;  ///< offsets, the one to be taken next at the end
  std::uint64_t reserved_ = 0;       ///< bytes of the file
};

}  // namespace unishard::trainer::detail
