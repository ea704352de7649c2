#pragma once
// Files that are open only while they are in use: a checkpoint of many ranks has more files than a
// process may open.
#include "unishard/format/storage.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace unishard::converters {

/// Hands out open files, and closes those that were not used for long and that nobody holds.
/// Thread-safe. Errors of closing are those of the call that made it necessary.
class FilePool {
 public:
  using Open = std::function<std::unique_ptr<File>(const Path&)>;
  /// `open` is called for a path each time it is needed and not open; never twice at once.
  explicit FilePool(Open open, std::size_t open_files = 128);

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

/// A pool of files for reading.
std::shared_ptr<FilePool> reading_pool(Storage& storage);

/// A file of a pool, which it keeps alive.
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
