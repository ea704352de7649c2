#pragma once
// The file system as UniShard uses it: positioned I/O and the few name operations that the commit
// protocol needs. One real implementation (POSIX); tests wrap it to inject failures at the n-th
// call. All functions throw Error naming the path (Io, NoSpace, NotFound, AlreadyExists). Short
// reads and writes and EINTR are handled inside.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unishard {

using Path = std::filesystem::path;

/// An open file. read_at and write_at are safe from several threads; the rest is not. Writes may be
/// held back until sync() or close(), which then report what went wrong; read_at sees them.
class File {
 public:
  virtual ~File() = default;  ///< closes; errors are lost, so call close() after writing
  virtual std::uint64_t size() const = 0;
  /// Fills `out` completely; Corrupt ("truncated") when the file ends before.
  virtual void read_at(std::uint64_t offset, std::span<std::byte> out) const = 0;
  virtual void write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  /// Says that the file will have `bytes` bytes, before they are written: takes the space now
  /// (NoSpace), and lets writes go past the page cache. Bytes not written are zero.
  virtual void reserve(std::uint64_t bytes) = 0;
  /// Cuts the file off, or adds zeros that take no space.
  virtual void resize(std::uint64_t bytes) = 0;
  virtual void sync() = 0;
  virtual void close() = 0;
  virtual const Path& path() const = 0;
};

enum class EntryKind : std::uint8_t { File, Directory, Other, Missing };

struct Entry {
  std::string name;
  EntryKind kind = EntryKind::Other;
  std::int64_t modified_seconds = 0;  ///< since 1970
};

/// Exclusive ownership of a lock file, given up by the destructor or by the end of the process.
class NameLock {
 public:
  virtual ~NameLock() = default;
  /// False once another process has taken the lock over because this one seemed to be dead.
  /// Thread-safe.
  virtual bool still_held() const = 0;
};

/// Exactly one of the two is set, but `holder` may be empty when its owner left no description.
struct LockAttempt {
  std::unique_ptr<NameLock> lock;
  std::string holder;  ///< the description that the present owner gave
};

/// Safe from several threads on different paths.
class Storage {
 public:
  virtual ~Storage() = default;
  virtual std::unique_ptr<File> open(
      const Path& path) = 0;  ///< for reading; a directory or device is an error
  virtual std::unique_ptr<File> create(
      const Path& path) = 0;  ///< for reading and writing; must not exist
  virtual std::unique_ptr<File> open_for_update(const Path& path) = 0;
  virtual EntryKind kind(const Path& path) = 0;
  virtual std::vector<Entry> list(const Path& directory) = 0;  ///< sorted by name
  virtual void make_directory(const Path& path) = 0;           ///< parents too; existing is fine
  virtual void create_directory(const Path& path) = 0;         ///< must not exist
  virtual void rename(
      const Path& from,
      const Path& to) = 0;  ///< replaces a file; a non-empty folder is AlreadyExists
  /// Renames a file or folder to a name that is free. Throws AlreadyExists when `to` exists, which
  /// then stays as it is.
  virtual void rename_new(const Path& from, const Path& to) = 0;
  virtual void exchange(const Path& a,
                        const Path& b) = 0;  ///< both exist; atomic, else Unsupported
  /// A second name for a file, which lives as long as one of its names. Unsupported where the file
  /// system, or the owner of the file, allows none.
  virtual void hard_link(const Path& from, const Path& to) = 0;
  /// Missing is fine, also when another process removes entries at the same time. Links are not
  /// followed.
  virtual void remove_tree(const Path& path) = 0;
  virtual void remove_directory(const Path& path) = 0;  ///< must be empty, else AlreadyExists
  virtual void remove_file(const Path& path) = 0;
  virtual void sync_directory(const Path& path) = 0;
  /// Takes the lock that the file `path` stands for, creating the file. `description` is what
  /// other processes read as LockAttempt::holder. The lock excludes processes of this host by
  /// flock(), and those of other hosts by a heartbeat where locks do not reach them: a lock whose
  /// owner is on another host and has shown no sign of life for 30 s is taken over, after waiting
  /// for as long as that takes to see. The file goes with the lock.
  virtual LockAttempt try_lock(const Path& path, const std::string& description) = 0;
};

/// The one POSIX storage; stateless, lives as long as the program.
Storage& posix_storage();

/// The whole of a small text file. Corrupt when it is larger than `limit_bytes`.
std::string read_text(Storage& storage, const Path& path, std::uint64_t limit_bytes);

/// Storage::make_directory() that also makes the names of the folders that it makes durable.
void make_durable_directory(Storage& storage, const Path& path);

/// Writes `text` to a new file beside `path`, under a name of staging_names.hpp, and syncs it.
/// Returns that name, for a rename to `path` or discard().
Path write_beside(Storage& storage, const Path& path, std::string_view text);
/// Removes what write_beside() wrote. Ignores failures: the name says that it is no result.
void discard(Storage& storage, const Path& beside) noexcept;

/// Write beside, sync, rename, sync the folder: afterwards `path` holds all of `text`, or what it
/// held.
void replace_text(Storage& storage, const Path& path, std::string_view text);

}  // namespace unishard
