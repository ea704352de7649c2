#include "state/block_file.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <utility>

namespace unishard::trainer::detail {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

std::unique_ptr<File> create_without_name(Storage& storage, const Path& folder) {
  try {
    storage.make_directory(folder);
    return storage.create_unnamed(folder);
  } catch (const Error& error) {
    raise(error.code(), fmt::format("offload: nvme_path {}: {}", folder.native(), error.what()),
          error.hint().empty() ? "give another nvme_path" : error.hint());
  }
}

/// Calls transfer(blocks, bytes) for parts of both, of about equally many blocks, at the same time.
/// Throws: what one of the calls has thrown, when all have ended.
template <class Block, class Byte, class Transfer>
void transfer_in_parts(std::size_t parts, std::uint64_t block_bytes, std::span<const Block> blocks,
                       std::span<Byte> bytes, const Transfer& transfer) {
  const std::size_t each = (blocks.size() + parts - 1) / parts;
  std::vector<std::future<void>> others;
  for (std::size_t first = each; first < blocks.size(); first += each) {
    const std::size_t count = std::min(each, blocks.size() - first);
    const std::size_t begin = first * block_bytes;
    const auto own = bytes.subspan(begin, std::min(count * block_bytes, bytes.size() - begin));
    others.push_back(std::async(std::launch::async, [&transfer, blocks, first, count, own] {
      transfer(blocks.subspan(first, count), own);
    }));
  }
  transfer(blocks.first(std::min(each, blocks.size())),
           bytes.first(std::min<std::size_t>(each * block_bytes, bytes.size())));
  for (std::future<void>& other : others) other.get();  // the destructors wait too
}

}  // namespace

std::uint64_t whole_pages(std::uint64_t bytes) {
  return (std::max<std::uint64_t>(bytes, 1) + kPageBytes - 1) / kPageBytes * kPageBytes;
}

/// Returns how many blocks from the first one on lie one after another, and are written or not as
/// that one is.
std::size_t BlockFile::run_length(std::span<const BlockPtr> blocks) const {
  const Block& first = *blocks[0];
  std::size_t count = 1;
  while (count < blocks.size() && blocks[count]->offset_ == first.offset_ + count * block_bytes_ &&
         (blocks[count]->written_ > 0) == (first.written_ > 0))
    ++count;
  return count;
}

BlockFile::Block::~Block() {
  const std::lock_guard lock(file_->free_mutex_);
  file_->free_.push_back(offset_);
}

std::shared_ptr<BlockFile> BlockFile::make(Storage& storage, const Path& folder,
                                           std::uint64_t block_bytes, std::size_t threads) {
  return std::shared_ptr<BlockFile>(new BlockFile(folder, create_without_name(storage, folder),
                                                  whole_pages(block_bytes), threads));
}

BlockFile::BlockFile(Path folder, std::unique_ptr<File> file, std::uint64_t block_bytes,
                     std::size_t threads)
    : folder_(std::move(folder)),
      file_(std::move(file)),
      block_bytes_(block_bytes),
      threads_(threads) {}

std::vector<BlockFile::BlockPtr> BlockFile::allocate(std::size_t count) {
  std::vector<BlockPtr> blocks;
  while (blocks.size() < count) {
    make_free(count - blocks.size());
    const std::lock_guard lock(free_mutex_);
    while (blocks.size() < count && !free_.empty()) {
      blocks.push_back(std::make_shared<Block>(shared_from_this(), free_.back()));
      free_.pop_back();
    }
  }
  std::ranges::sort(blocks, {}, [](const BlockPtr& block) { return block->offset_; });
  return blocks;
}

void BlockFile::make_free(std::size_t count) {
  const auto missing = [&] {
    const std::lock_guard lock(free_mutex_);
    return count - std::min(count, free_.size());
  };
  if (missing() == 0) return;
  const std::unique_lock growing(growing_);
  if (const std::size_t blocks = missing(); blocks > 0) grow(blocks);
}

/// Pre: growing_ is held.
void BlockFile::grow(std::size_t blocks) {
  const std::uint64_t wanted = reserved_ + blocks * block_bytes_;
  try {
    file_->reserve(wanted);
  } catch (const Error& error) {
    const bool is_limit = error.hint().find("ulimit") != std::string::npos;
    raise(
        error.code(),
        fmt::format("offload: {} has no room for the training state, of which {} bytes were to be "
                    "there so far: {}",
                    folder_.native(), wanted, error.what()),
        is_limit ? error.hint() : "free space there, or give another nvme_path");
  }
  const std::lock_guard lock(free_mutex_);
  std::vector<std::uint64_t> fresh;  // taken from the end, so in the order of the file
  for (std::uint64_t at = wanted; at > reserved_; at -= block_bytes_)
    fresh.push_back(at - block_bytes_);
  free_.insert(free_.begin(), fresh.begin(), fresh.end());
  reserved_ = wanted;
}

void BlockFile::write(std::span<const BlockPtr> blocks, std::span<const std::byte> bytes) {
  const std::shared_lock not_growing(growing_);
  transfer_in_parts(threads_, block_bytes_, blocks, bytes,
                    [this](auto... part) { write_some(part...); });
}

/// Pre: growing_ is held, shared.
void BlockFile::write_some(std::span<const BlockPtr> blocks, std::span<const std::byte> bytes) {
  while (!blocks.empty()) {
    const std::size_t count = run_length(blocks);
    const std::size_t size = std::min<std::size_t>(bytes.size(), count * block_bytes_);
    write_pages(blocks[0]->offset_, bytes.first(size));
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = i * block_bytes_;
      const auto own = bytes.subspan(at, std::min<std::size_t>(block_bytes_, size - at));
      blocks[i]->crc64_ = crc64(own);
      blocks[i]->written_ = own.size();
    }
    blocks = blocks.subspan(count);
    bytes = bytes.subspan(size);
  }
}

/// Fills the last page with zeros.
void BlockFile::write_pages(std::uint64_t offset, std::span<const std::byte> bytes) {
  const std::size_t whole = bytes.size() / kPageBytes * kPageBytes;
  if (whole > 0) file_->write_now(offset, bytes.first(whole));
  if (whole == bytes.size()) return;
  std::array<std::byte, kPageBytes> last{};
  std::ranges::copy(bytes.subspan(whole), last.begin());
  file_->write_now(offset + whole, last);
}

void BlockFile::read(std::span<const BlockPtr> blocks, std::span<std::byte> out) const {
  const std::shared_lock not_growing(growing_);
  transfer_in_parts(threads_, block_bytes_, blocks, out,
                    [this](auto... part) { read_some(part...); });
}

/// Pre: growing_ is held, shared.
void BlockFile::read_some(std::span<const BlockPtr> blocks, std::span<std::byte> out) const {
  while (!blocks.empty()) {
    const std::size_t count = run_length(blocks);
    const std::size_t size = std::min<std::size_t>(out.size(), count * block_bytes_);
    const auto own = out.first(size);
    if (blocks[0]->written_ == 0) {
      std::ranges::fill(own, std::byte{0});
    } else {
      file_->read_at(blocks[0]->offset_, own);
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = i * block_bytes_;
        check(*blocks[i], own.subspan(at, std::min<std::size_t>(block_bytes_, size - at)));
      }
    }
    blocks = blocks.subspan(count);
    out = out.subspan(size);
  }
}

void BlockFile::check(const Block& block, std::span<const std::byte> bytes) const {
  if (bytes.size() == block.written_ && crc64(bytes) == block.crc64_) return;
  raise(ErrorCode::Corrupt,
        fmt::format("offload: the file of training state in {} was changed, or the disk lost what "
                    "was written: bytes {} to {}",
                    folder_.native(), block.offset_, block.offset_ + bytes.size()),
        "check the disk, and continue from the last checkpoint");
}

}  // namespace unishard::trainer::detail
