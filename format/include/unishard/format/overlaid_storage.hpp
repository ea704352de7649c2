#pragma once
// A file system with files that lie elsewhere: in other folders, or in the memory of this process.
// A checkpoint whose shards are on several nodes or in several folders is read through it as one.
#include "unishard/format/storage.hpp"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace unishard {

/// Passes every call on to another storage, except that open(), kind() and list() also know the
/// files that were added, and their folders.
/// Thread safety: as Storage; add() runs beside no other function.
class OverlaidStorage final : public Storage {
 public:
  using Open = std::function<std::unique_ptr<File>()>;

  /// Lifetime: `below` must outlive this object.
  explicit OverlaidStorage(Storage& below) : below_(below) {}

  /// Adds a file, which `open` opens for reading. It stands before a file of that path below.
  void add(const Path& path, Open open) { files_[path.lexically_normal()] = std::move(open); }

  std::unique_ptr<File> open(const Path& path) override;
  EntryKind kind(const Path& path) override;
  std::vector<Entry> list(const Path& directory) override;

  std::unique_ptr<File> create(const Path& path) override { return below_.create(path); }
  std::unique_ptr<File> open_for_update(const Path& path) override {
    return below_.open_for_update(path);
  }
  void make_directory(const Path& path) override { below_.make_directory(path); }
  void create_directory(const Path& path) override { below_.create_directory(path); }
  void rename(const Path& from, const Path& to) override { below_.rename(from, to); }
  void rename_new(const Path& from, const Path& to) override { below_.rename_new(from, to); }
  void exchange(const Path& a, const Path& b) override { below_.exchange(a, b); }
  void hard_link(const Path& from, const Path& to) override { below_.hard_link(from, to); }
  void remove_tree(const Path& path) override { below_.remove_tree(path); }
  void remove_directory(const Path& path) override { below_.remove_directory(path); }
  void remove_file(const Path& path) override { below_.remove_file(path); }
  void sync_directory(const Path& path) override { below_.sync_directory(path); }
  LockAttempt try_lock(const Path& path, const std::string& description) override {
    return below_.try_lock(path, description);
  }

 private:
  bool is_folder_of_added(const Path& path) const;

  Storage& below_;
  std::map<Path, Open> files_;
};

}  // namespace unishard
