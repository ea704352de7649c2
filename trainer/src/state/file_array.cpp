#include "state/file_array.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace unishard::trainer::detail {

FileArray::FileArray(std::shared_ptr<BlockFile> file, std::uint64_t bytes)
    : file_(std::move(file)), bytes_(bytes) {
  const std::uint64_t size = file_->block_bytes();
  blocks_ = file_->allocate(static_cast<std::size_t>((bytes + size - 1) / size));
}

std::uint64_t FileArray::length_of(std::size_t index) const {
  return std::min(file_->block_bytes(), bytes_ - index * file_->block_bytes());
}

void FileArray::read(std::uint64_t offset, std::span<std::byte> out) const {
  const std::uint64_t size = file_->block_bytes();
  std::vector<std::byte> whole;
  while (!out.empty()) {
    const auto index = static_cast<std::size_t>(offset / size);
    const std::uint64_t at = offset % size, length = length_of(index);
    std::vector<BlockPtr> blocks;
    std::uint64_t count = 0;  // bytes of `out` in the blocks
    {
      const std::lock_guard lock(mutex_);
      std::size_t last = index;
      if (at == 0) {  // whole blocks can be read in place
        while (last < blocks_.size() && count + length_of(last) <= out.size())
          count += length_of(last++);
      }
      blocks.assign(blocks_.begin() + static_cast<std::ptrdiff_t>(index),
                    blocks_.begin() + static_cast<std::ptrdiff_t>(std::max(last, index + 1)));
    }
    if (count > 0) {
      file_->read(blocks, out.first(count));
    } else {
      whole.resize(length);
      file_->read(blocks, whole);
      count = std::min<std::uint64_t>(out.size(), length - at);
      std::memcpy(out.data(), whole.data() + at, count);
    }
    offset += count;
    out = out.subspan(count);
  }
}

void FileArray::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  const std::uint64_t size = file_->block_bytes();
  while (!bytes.empty()) {
    const auto index = static_cast<std::size_t>(offset / size);
    const std::uint64_t at = offset % size;
    std::size_t last = index;
    std::uint64_t count = 0;
    while (at == 0 && last < blocks_.size() && count + length_of(last) <= bytes.size())
      count += length_of(last++);
    if (count > 0) {
      file_->write(own_blocks(index, last - index), bytes.first(count));
    } else {
      count = std::min<std::uint64_t>(bytes.size(), length_of(index) - at);
      write_part(index, at, bytes.first(count));
    }
    offset += count;
    bytes = bytes.subspan(count);
  }
}

/// Other threads may write other parts of the same block.
void FileArray::write_part(std::size_t index, std::uint64_t at, std::span<const std::byte> bytes) {
  std::vector<std::byte> whole(length_of(index));
  const std::lock_guard lock(mutex_);
  file_->read({&blocks_[index], 1}, whole);
  std::memcpy(whole.data() + at, bytes.data(), bytes.size());
  if (blocks_[index].use_count() > 1) blocks_[index] = file_->allocate(1).front();
  file_->write({&blocks_[index], 1}, whole);
}

/// Returns blocks that no snapshot has.
std::vector<FileArray::BlockPtr> FileArray::own_blocks(std::size_t first, std::size_t count) {
  const std::lock_guard lock(mutex_);
  const auto own = std::span(blocks_).subspan(first, count);
  const auto is_shared = [](const BlockPtr& each) { return each.use_count() > 1; };
  // Taken together, they lie one after another.
  std::vector<BlockPtr> fresh =
      file_->allocate(static_cast<std::size_t>(std::ranges::count_if(own, is_shared)));
  auto next = fresh.begin();
  for (BlockPtr& each : own)
    if (is_shared(each)) each = std::move(*next++);
  return {own.begin(), own.end()};
}

std::shared_ptr<FileArray> FileArray::snapshot() const {
  const std::lock_guard lock(mutex_);
  auto copy = std::make_shared<FileArray>(file_, 0);
  copy->bytes_ = bytes_;
  copy->blocks_ = blocks_;
  return copy;
}

void FileArray::take(FileArray& other) {
  const std::scoped_lock lock(mutex_, other.mutex_);
  blocks_.swap(other.blocks_);
}

}  // namespace unishard::trainer::detail
