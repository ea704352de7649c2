#pragma once
// A file system in memory with a journal of every call that changes it. The journal refers to
// inodes and entries of folders, as a disk does, so that a test can replay any part of it: see
// tests/reliability/crash_states.hpp.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace unishard::test {

/// The bytes of a file. Several trees may share them; shared bytes are not changed.
struct Content {
  std::string bytes;
  std::optional<std::uint64_t> digest = {};  ///< CRC-64, once computed

  std::uint64_t crc64();
};

/// A file or a folder.
struct Inode {
  std::uint64_t number = 0;
  bool is_folder = false;
  std::map<std::string, std::shared_ptr<Inode>> entries = {};  ///< of a folder
  std::shared_ptr<Content> content = {};                       ///< of a file
};
using InodePtr = std::shared_ptr<Inode>;

/// A call that changes the file system or makes earlier changes durable.
struct Operation {
  enum class Kind : std::uint8_t {
    Write,       ///< `data` at `offset` of file `inode`
    Resize,      ///< file `inode` gets `offset` bytes; new bytes are zeros
    SyncFile,    ///< of file `inode`
    Link,        ///< `name` in folder `inode` becomes `other`: a new file or folder, or a hard link
    Unlink,      ///< `name` in folder `inode` is removed
    Rename,      ///< `name` in folder `inode` becomes `other_name` in folder `other`
    Exchange,    ///< the same two entries are swapped
    SyncFolder,  ///< of folder `inode`
    Returned,    ///< the caller was told that its result is durable
  };
  Kind kind = Kind::Returned;
  std::uint64_t inode = 0;
  std::string name = {};
  std::uint64_t other = 0;
  std::string other_name = {};
  bool is_folder = false;  ///< of Link
  std::uint64_t offset = 0;
  std::shared_ptr<const std::string> data = {};
  std::string text = {};  ///< description of the call

  bool changes_names() const {
    return kind == Kind::Link || kind == Kind::Unlink || kind == Kind::Rename ||
           kind == Kind::Exchange;
  }
  bool changes_data() const { return kind == Kind::Write || kind == Kind::Resize; }
  bool is_sync() const { return kind == Kind::SyncFile || kind == Kind::SyncFolder; }
};

/// Applies a Write or a Resize.
void apply_data(const Operation& operation, std::string& bytes);

/// Thread-safe.
class RecordingStorage final : public Storage {
 public:
  RecordingStorage();
  /// Works on `root` itself, and numbers new inodes after `last_inode`.
  RecordingStorage(InodePtr root, std::uint64_t last_inode);

  /// Starts to record calls. Sync number `dropped_sync` (from 0) reports success, but is not
  /// recorded.
  void start_journal(std::optional<std::size_t> dropped_sync = {});
  /// Records that the caller was told that everything is durable.
  void note_returned();
  const std::vector<Operation>& journal() const { return journal_; }
  /// The sync that was dropped, and the number of calls recorded before it.
  struct Dropped {
    Operation operation;
    std::size_t at = 0;
  };
  const std::optional<Dropped>& dropped() const { return dropped_; }

  const InodePtr& root() const { return root_; }
  /// Returns the file or folder of that name.
  /// Pre: it exists.
  InodePtr at(const Path& path) const;
  std::uint64_t last_inode() const { return last_inode_; }

  std::unique_ptr<File> open(const Path& path) override;
  std::unique_ptr<File> create(const Path& path) override;
  std::unique_ptr<File> open_for_update(const Path& path) override { return open(path); }
  EntryKind kind(const Path& path) override;
  std::vector<Entry> list(const Path& directory) override;
  void make_directory(const Path& path) override;
  void create_directory(const Path& path) override;
  void rename(const Path& from, const Path& to) override;
  void rename_new(const Path& from, const Path& to) override;
  void exchange(const Path& a, const Path& b) override;
  void hard_link(const Path& from, const Path& to) override;
  void remove_tree(const Path& path) override;
  void remove_directory(const Path& path) override;
  void remove_file(const Path& path) override;
  void sync_directory(const Path& path) override;
  /// A lock file without a lock belongs to a dead process, because locks do not outlive their
  /// storage.
  LockAttempt try_lock(const Path& path, const std::string& description) override;

 private:
  class Lock;
  friend class RecordingFile;
  struct Place {
    InodePtr folder;
    std::string name;
  };
  InodePtr find(const Path& path) const;
  Place place_of(const Path& path, const char* action) const;
  InodePtr existing(const Path& path, const char* action) const;
  void add(const Place& place, InodePtr inode, const Path& path);
  void remove_below(const Place& place, const Path& path);
  void move(const Path& from, const Path& to, Operation::Kind kind);
  void note(Operation operation);

  InodePtr root_;
  std::uint64_t last_inode_ = 1;
  bool recording_ = false;
  std::optional<std::size_t> dropped_sync_;
  std::size_t syncs_ = 0;
  std::optional<Dropped> dropped_;
  std::vector<Operation> journal_;
  std::map<std::string, std::string> locks_;  ///< path, description
  mutable std::mutex mutex_;
};

/// Returns the same tree with inodes of its own; contents are shared.
InodePtr copy_tree(const InodePtr& root);

/// Returns a number that depends on all names and bytes below `inode`.
std::uint64_t digest_of(const Inode& inode);

}  // namespace unishard::test
