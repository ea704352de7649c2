#pragma once
// The file system as UniShard uses it: positioned I/O and the operations on names that the commit
// protocol needs. posix_storage() is the implementation; tests wrap it to inject failures.
// Throws: every function throws an Error that names the path (Io, NoSpace, NotFound or
// AlreadyExists). Short transfers and EINTR are handled inside.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unishard {

using Path = std::filesystem::path;

/// Size and time of the last change of a file. Two equal stamps mean that nobody wrote into the
/// file between them, up to the resolution of the file system's clock.
struct FileStamp {
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;  ///< since 1970-01-01 00:00 UTC
  bool operator==(const FileStamp&) const = default;
};

/// An open file. Writes may be held back until sync() or close(), which then report their failures;
/// read_at() sees held-back bytes.
/// Thread safety: read_at() and write_at() are thread-safe, the other functions are not.
class File {
 public:
  /// Closes the file and ignores failures; call close() after writing.
  virtual ~File() = default;
  virtual std::uint64_t size() const = 0;
  /// Returns a stamp without a time where the time is not known.
  virtual FileStamp stamp() const { return {.bytes = size()}; }
  /// Fills `out` completely.
  /// Throws: Corrupt ("truncated") when the file ends before.
  virtual void read_at(std::uint64_t offset, std::span<std::byte> out) const = 0;
  virtual void write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  /// Does what write_at() does, and holds nothing back; for files whose parts are written again and
  /// again. Use one of the two for a file. Pre: `offset` and the size are multiples of 4096.
  virtual void write_now(std::uint64_t offset, std::span<const std::byte> bytes) {
    write_at(offset, bytes);
  }
  /// Announces that the file will have `bytes` bytes: allocates the space now and lets writes
  /// bypass the page cache. Bytes that are never written are zero.
  /// Throws: NoSpace.
  virtual void reserve(std::uint64_t bytes) = 0;
  /// Truncates the file, or extends it with zeros that take no space.
  virtual void resize(std::uint64_t bytes) = 0;
  /// Returns once all bytes written are durable (fsync).
  virtual void sync() = 0;
  virtual void close() = 0;
  virtual const Path& path() const = 0;
  /// Returns true when large transfers bypass the page cache, as those of a local disk do.
  virtual bool bypasses_cache() const { return false; }
};

enum class EntryKind : std::uint8_t {
  File,
  Directory,
  Closed,  ///< of list() alone: a folder that this process may not look into
  Other,
  Missing
};

struct Entry {
  std::string name;
  EntryKind kind = EntryKind::Other;
  std::int64_t modified_seconds = 0;  ///< since 1970-01-01 00:00 UTC
};

/// Exclusive ownership of a lock file. The destructor or the end of the process releases it.
class NameLock {
 public:
  virtual ~NameLock() = default;
  /// Returns false once another process has taken the lock over because this process seemed dead.
  /// Thread-safe.
  virtual bool still_held() const = 0;
};

/// Result of try_lock(). `lock` is null when another process holds the lock; `holder` is then that
/// process's description, or empty when it left none.
struct LockAttempt {
  std::unique_ptr<NameLock> lock;
  std::string holder;  ///< the description that the present owner gave
};

/// The operations of a file system. Thread-safe for different paths.
class Storage {
 public:
  virtual ~Storage() = default;
  /// Opens a regular file for reading.
  /// Throws: Io for a directory or a device.
  virtual std::unique_ptr<File> open(const Path& path) = 0;
  /// Creates a file for reading and writing.
  /// Throws: AlreadyExists.
  virtual std::unique_ptr<File> create(const Path& path) = 0;
  /// Creates a file without a name for reading and writing. The end of the process, however it
  /// comes, gives its space back. Where the file system has no such files, it has a name for a
  /// moment.
  virtual std::unique_ptr<File> create_unnamed(const Path& folder);
  /// Opens an existing regular file for reading and writing.
  virtual std::unique_ptr<File> open_for_update(const Path& path) = 0;
  /// Follows links. A link that leads back to itself is Other.
  virtual EntryKind kind(const Path& path) = 0;
  /// Returns the entries, sorted by name. Links are not followed: they are Other.
  virtual std::vector<Entry> list(const Path& directory) = 0;
  /// Creates a folder and its parents; an existing folder is no error.
  virtual void make_directory(const Path& path) = 0;
  /// Creates a folder.
  /// Throws: AlreadyExists.
  virtual void create_directory(const Path& path) = 0;
  /// Renames a file or folder. An existing file or empty folder `to` is replaced.
  /// Throws: AlreadyExists when `to` is a folder that is not empty.
  virtual void rename(const Path& from, const Path& to) = 0;
  /// Renames a file or folder.
  /// Throws: AlreadyExists when `to` exists; nothing has then changed.
  virtual void rename_new(const Path& from, const Path& to) = 0;
  /// Swaps two existing names atomically.
  /// Throws: Unsupported when the file system cannot do that.
  virtual void exchange(const Path& a, const Path& b) = 0;
  /// Gives a file a second name; the file lives as long as one of its names.
  /// Throws: Unsupported when the file system or the ownership of the file does not allow it.
  virtual void hard_link(const Path& from, const Path& to) = 0;
  /// Removes a file, or a folder with all its content. Does not follow links. A missing path is no
  /// error, nor are entries that other processes remove at the same time.
  virtual void remove_tree(const Path& path) = 0;
  /// Removes an empty folder.
  /// Throws: AlreadyExists when it is not empty.
  virtual void remove_directory(const Path& path) = 0;
  virtual void remove_file(const Path& path) = 0;
  /// Makes the names in a folder durable (fsync of the folder).
  virtual void sync_directory(const Path& path) = 0;
  /// Tries to take the lock that the file `path` represents; creates the file. Other processes read
  /// `description` as LockAttempt::holder. flock() excludes processes of the same host. A heartbeat
  /// excludes processes of other hosts where flock() does not reach them: a lock whose owner runs
  /// on another host and has not renewed its heartbeat for 30 s is taken over; the call blocks for
  /// that time to observe it. Releasing the lock removes the file.
  virtual LockAttempt try_lock(const Path& path, const std::string& description) = 0;
};

/// Returns the POSIX implementation. It is stateless and lives until the program ends.
Storage& posix_storage();

/// Returns the content of a small text file.
/// Throws: Corrupt when it is larger than `limit_bytes`.
std::string read_text(Storage& storage, const Path& path, std::uint64_t limit_bytes);

/// Looks at the real file system, whose links Storage::kind() follows.
/// Throws: AlreadyExists when `path` is a link to something that does not exist.
void refuse_dangling_link(const Path& path);

/// Does the same as Storage::make_directory(), and makes the names of the created folders durable.
/// Returns the created folders, deepest first, for remove_if_empty().
std::vector<Path> make_durable_directory(Storage& storage, const Path& path);

/// Removes folders that were created for a result that did not come about: each in turn, up to the
/// first that cannot be removed because it is not empty.
void remove_if_empty(Storage& storage, const std::vector<Path>& folders) noexcept;

/// The new text of a file, written to a file beside it and synced. The name beside follows
/// staging_names.hpp, so readers skip it.
/// Thread safety: not thread-safe.
class StagedText {
 public:
  /// Writes and syncs `text` in a file beside `path`, in the same folder.
  /// Lifetime: `storage` must outlive this object.
  /// Throws: what writing a file throws; then nothing is left.
  StagedText(Storage& storage, Path path, std::string_view text);
  /// Removes the file beside unless commit() has succeeded. Ignores failures.
  ~StagedText();
  StagedText(const StagedText&) = delete;
  StagedText& operator=(const StagedText&) = delete;

  /// Renames the file beside to the path and syncs the folder. After a failure or crash the path
  /// holds either the old or all of the new text.
  void commit();

 private:
  void discard() noexcept;

  Storage& storage_;
  const Path path_;
  Path staged_;  ///< empty once it was renamed
};

/// Replaces the content of `path` atomically, by a StagedText.
void replace_text(Storage& storage, const Path& path, std::string_view text);

}  // namespace unishard
