#include "file_pool.hpp"

#include <utility>

namespace unishard::converters {

FilePool::FilePool(Open open, std::size_t open_files)
    : open_(std::move(open)), limit_(open_files) {}

std::shared_ptr<File> FilePool::get(const Path& path) {
  const std::scoped_lock lock(mutex_);
  Slot& slot = slots_[path.string()];
  slot.last_use = ++clock_;
  if (!slot.file) {
    slot.file = open_(path);
    if (++open_count_ > limit_) close_oldest();
  }
  return slot.file;
}

void FilePool::close_oldest() {
  Slot* oldest = nullptr;
  for (auto& [path, slot] : slots_) {
    if (slot.file && (oldest == nullptr || slot.last_use < oldest->last_use)) oldest = &slot;
  }
  oldest->file.reset();  // whoever still holds it finishes first
  --open_count_;
}

std::shared_ptr<FilePool> reading_pool(Storage& storage) {
  return std::make_shared<FilePool>([&storage](const Path& path) { return storage.open(path); });
}

PooledFile::PooledFile(std::shared_ptr<FilePool> pool, Path path)
    : pool_(std::move(pool)), path_(std::move(path)) {}

void PooledFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  pool_->get(path_)->read_at(offset, out);
}

void PooledFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  pool_->get(path_)->write_at(offset, bytes);
}

}  // namespace unishard::converters
