#pragma once
// Files that are open only while they are in use, because a checkpoint of many ranks has more files
// than a process may open.
#include "unishard/format/storage.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace unishard::converters {

/// Returns open files, and closes the least recently used ones that no caller holds. Thread-safe.
/// Throws: get() also throws the error of closing another file.
class FilePool {
 public:
  using Open = std::function<std::unique_ptr<File>(const Path&)>;
  /// `open` is called for a path whenever the file is needed and not open, and never concurrently.
  explicit FilePool(Open open, std::size_t open_files = 128);

  /// Returns the open file `path`. The pool does not close it while the result is held.
  std::shared_ptr<File> get(const Path& path);

 private:
  struct Slot {
    std::shared_ptr<File> file;
    std::uint64_t last_use = 0;
  };
  bool close_oldest();

  const Open open_;
  const std::size_t limit_;
  std::mutex mutex_;
  std::map<std::string, Slot> slots_;
  std::size_t open_count_ = 0;
  std::uint64_t clock_ = 0;
};

/// Returns a pool of files for reading.
/// Lifetime: `storage` must outlive the pool.
std::shared_ptr<FilePool> reading_pool(Storage& storage);

/// A file of a pool; keeps the pool alive. close() does nothing.
class PooledFile final : public File {
 public:
  PooledFile(std::shared_ptr<FilePool> pool, Path path);

  std::uint64_t size() const override { return pool_->get(path_)->size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override;
  void reserve(std::uint64_t bytes) override { pool_->get(path_)->reserve(bytes); }
  void resize(std::uint64_t bytes) override { pool_->get(path_)->resize(bytes); }
  void sync() override { pool_->get(path_)->sync(); }
  void close() override {}
  const Path& path() const override { return path_; }

 private:
  const std::shared_ptr<FilePool> pool_;
  const Path path_;
};

}  // namespace unishard::converters
