#pragma once
// The files of a checkpoint that is read while the run that wrote it may still be saving.
#include "unishard/format/storage.hpp"

#include <map>
#include <mutex>

namespace unishard::converters {

/// Passes every call on to another storage, and remembers what the files that it opens for reading
/// were like. Files whose names begin with "latest" are not watched: a run that goes on replaces
/// them.
/// Thread safety: as Storage; require_unchanged() may run beside the other functions.
class WatchedStorage final : public Storage {
 public:
  /// Lifetime: `storage` must outlive this object.
  explicit WatchedStorage(Storage& storage) : storage_(storage) {}

  /// Looks at every file again that was opened for reading. Files that are gone do not count: what
  /// was read of them was read before.
  /// Throws: Busy, naming the file, when one was written or replaced since it was first opened.
  void require_unchanged() const;

  std::unique_ptr<File> open(const Path& path) override;
  std::unique_ptr<File> create(const Path& path) override { return storage_.create(path); }
  std::unique_ptr<File> open_for_update(const Path& path) override {
    return storage_.open_for_update(path);
  }
  EntryKind kind(const Path& path) override { return storage_.kind(path); }
  std::vector<Entry> list(const Path& directory) override { return storage_.list(directory); }
  void make_directory(const Path& path) override { storage_.make_directory(path); }
  void create_directory(const Path& path) override { storage_.create_directory(path); }
  void rename(const Path& from, const Path& to) override { storage_.rename(from, to); }
  void rename_new(const Path& from, const Path& to) override { storage_.rename_new(from, to); }
  void exchange(const Path& a, const Path& b) override { storage_.exchange(a, b); }
  void hard_link(const Path& from, const Path& to) override { storage_.hard_link(from, to); }
  void remove_tree(const Path& path) override { storage_.remove_tree(path); }
  void remove_directory(const Path& path) override { storage_.remove_directory(path); }
  void remove_file(const Path& path) override { storage_.remove_file(path); }
  void sync_directory(const Path& path) override { storage_.sync_directory(path); }
  LockAttempt try_lock(const Path& path, const std::string& description) override {
    return storage_.try_lock(path, description);
  }

 private:
  Storage& storage_;
  mutable std::mutex mutex_;
  std::map<Path, FileStamp> first_stamps_;
};

}  // namespace unishard::converters
