#pragma once
// Files in memory, for tests that must not use the disk (fuzzing makes thousands of files a
// second). Names are paths as given. Not thread-safe.
#include "unishard/format/storage.hpp"

#include <map>
#include <memory>
#include <string>

namespace unishard::test {

class MemoryStorage final : public Storage {
 public:
  std::map<std::string, std::shared_ptr<std::string>> files;

  void put(const Path& path, std::string bytes);
  /// Copies every file below `folder` of the real file system, under the same names.
  void copy_from_disk(const Path& folder);

  std::unique_ptr<File> open(const Path& path) override;
  std::unique_ptr<File> create(const Path& path) override;
  std::unique_ptr<File> open_for_update(const Path& path) override { return open(path); }
  EntryKind kind(const Path& path) override;
  std::vector<Entry> list(const Path& directory) override;
  void make_directory(const Path&) override {}
  void create_directory(const Path&) override {}
  void rename(const Path& from, const Path& to) override;
  void rename_new(const Path& from, const Path& to) override;
  void exchange(const Path& a, const Path& b) override;
  void hard_link(const Path& from, const Path& to) override;
  void remove_tree(const Path& path) override;
  void remove_file(const Path& path) override { files.erase(path.string()); }
  void remove_directory(const Path&) override {}
  void sync_directory(const Path&) override {}
  LockAttempt try_lock(const Path& path, const std::string& description) override;
};

}  // namespace unishard::test
