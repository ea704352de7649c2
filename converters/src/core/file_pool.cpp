#include "core/file_pool.hpp"

#include <utility>

namespace unishard::converters {

FilePool::FilePool(Open open, std::size_t open_files)
    : open_(std::move(open)), limit_(open_files) {}

std::shared_ptr<File> FilePool::get(const Path& path) {
  const std::scoped_lock lock(mutex_);
  Slot& slot = slots_[path.string()];
  slot.last_use = ++clock_;
  if (!slot.file) {
    while (open_count_ >= limit_ && close_oldest()) {
    }
    slot.file = open_(path);
    ++open_count_;
  }
  return slot.file;
}

// Returns false when all files are in use. No thread can begin to use one meanwhile, because get()
// needs the mutex.
bool FilePool::close_oldest() {
  Slot* oldest = nullptr;
  for (auto& [path, slot] : slots_) {
    if (slot.file.use_count() == 1 && (oldest == nullptr || slot.last_use < oldest->last_use))
      oldest = &slot;
  }
  if (oldest == nullptr) return false;
  const std::shared_ptr<File> file = std::move(oldest->file);
  --open_count_;
  file->close();
  return true;
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
