#include "unishard/format/error.hpp"
#include "unishard/format/storage.hpp"

#include "storage/posix_file.hpp"
#include "storage/posix_lock.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <random>
#include <system_error>
#include <utility>

namespace unishard {
namespace {

EntryKind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return EntryKind::File;
  return S_ISDIR(mode) ? EntryKind::Directory : EntryKind::Other;
}

/// Asks as the user as whom files are opened.
bool is_closed(const Path& folder) {
  return ::faccessat(AT_FDCWD, folder.c_str(), R_OK | X_OK, AT_EACCESS) != 0 && errno == EACCES;
}

class PosixStorage final : public Storage {
 public:
  std::unique_ptr<File> open(const Path& path) override {
    // O_NONBLOCK: opening a FIFO must not wait; what is not a regular file is refused just after.
    auto file = open_with(path, O_RDONLY | O_NONBLOCK, "opening");
    const EntryKind what = kind(path);
    if (what == EntryKind::Missing) raise_errno("opening", path.native(), ENOENT);  // just removed
    if (what != EntryKind::File)
      raise(ErrorCode::Corrupt, fmt::format("{} is not a regular file", path.native()));
    return file;
  }
  std::unique_ptr<File> create(const Path& path) override {
    return open_with(path, O_RDWR | O_CREAT | O_EXCL, "creating");
  }
  std::unique_ptr<File> create_unnamed(const Path& folder) override {
    const int descriptor = ::open(folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (descriptor >= 0) return make_posix_file(folder, descriptor, true);
    if (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOSYS)  // the file system lacks them
      return Storage::create_unnamed(folder);
    raise_errno("creating a file in", folder.native(), errno);
  }
  std::unique_ptr<File> open_for_update(const Path& path) override {
    return open_with(path, O_RDWR, "opening");
  }

  EntryKind kind(const Path& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return EntryKind::Missing;
      if (errno == ELOOP) return EntryKind::Other;
      raise_errno("looking at", path.native(), errno);
    }
    return kind_of(status.st_mode);
  }

  std::vector<Entry> list(const Path& directory) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), ::closedir);
    if (!stream) raise_errno("listing", directory.native(), errno);
    std::vector<Entry> entries;
    for (;;) {
      errno = 0;
      const dirent* const item = ::readdir(stream.get());
      if (item == nullptr) break;
      const std::string name = item->d_name;
      struct stat status {};  // what is gone by now is left out
      if (name == "." || name == ".." || ::lstat((directory / name).c_str(), &status) != 0)
        continue;
      EntryKind kind = kind_of(status.st_mode);
      if (kind == EntryKind::Directory && is_closed(directory / name)) kind = EntryKind::Closed;
      entries.push_back({name, kind, status.st_mtime});
    }
    if (errno != 0) raise_errno("listing", directory.native(), errno);
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.name < b.name; });
    return entries;
  }

  void make_directory(const Path& path) override {
    std::error_code code;
    std::filesystem::create_directories(path, code);
    if (!code) return;
    refuse_dangling_link(path);
    raise_errno("creating folder", path.native(), code.value());
  }
  void create_directory(const Path& path) override {
    if (::mkdir(path.c_str(), 0777) != 0) raise_errno("creating folder", path.native(), errno);
  }
  void rename(const Path& from, const Path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0)
      raise_errno(fmt::format("renaming {} to", from.native()), to.native(), errno);
  }
  void rename_new(const Path& from, const Path& to) override {
    if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) ==
        0)
      return;
    const std::string action = fmt::format("renaming {} to", from.native());
    if (errno != EINVAL && errno != ENOSYS) raise_errno(action, to.native(), errno);
    if (kind(from) == EntryKind::Directory) {
      // The file system lacks the flag. rename() replaces nothing but an empty folder.
      if (kind(to) != EntryKind::Missing) raise_errno(action, to.native(), EEXIST);
      rename(from, to);
      return;
    }
    if (::link(from.c_str(), to.c_str()) != 0) raise_errno(action, to.native(), errno);
    remove_file(from);
  }
  void exchange(const Path& a, const Path& b) override {
    if (::syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0)
      return;
    if (errno == EINVAL || errno == ENOSYS) {
      raise(
          ErrorCode::Unsupported,
          fmt::format("the file system of {} cannot exchange two folders atomically", b.native()));
    }
    raise_errno(fmt::format("exchanging {} with", a.native()), b.native(), errno);
  }
  void hard_link(const Path& from, const Path& to) override {
    if (::link(from.c_str(), to.c_str()) == 0) return;
    const int error = errno;
    const std::string action = fmt::format("linking {} as", from.native());
    if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EXDEV ||
        error == EMLINK) {
      raise(ErrorCode::Unsupported,
            fmt::format("{} {}: {}", action, to.native(), std::generic_category().message(error)));
    }
    raise_errno(action, to.native(), error);
  }
  void remove_tree(const Path& path) override {
    // An entry that another process removes first, or adds, ends remove_all() early.
    constexpr int kTries = 100;
    std::error_code code;
    for (int i = 0; i < kTries; ++i) {
      std::filesystem::remove_all(path, code);
      if (code != std::errc::no_such_file_or_directory && code != std::errc::directory_not_empty)
        break;
    }
    if (code && code != std::errc::no_such_file_or_directory)
      raise_errno("removing", path.native(), code.value());
  }
  void remove_directory(const Path& path) override {
    if (::rmdir(path.c_str()) != 0) raise_errno("removing", path.native(), errno);
  }
  void remove_file(const Path& path) override {
    if (::unlink(path.c_str()) != 0) raise_errno("removing", path.native(), errno);
  }
  void sync_directory(const Path& path) override {
    auto folder = open_with(path, O_RDONLY | O_DIRECTORY, "opening folder");
    folder->sync();
    folder->close();
  }
  LockAttempt try_lock(const Path& path, const std::string& description) override {
    return try_posix_lock(path, description);
  }

 private:
  static std::unique_ptr<File> open_with(const Path& path, int flags, std::string_view action) {
    int descriptor = -1;
    do {
      descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    } while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0) raise_errno(action, path.native(), errno);
    return make_posix_file(path, descriptor, (flags & O_ACCMODE) == O_RDWR);
  }
};

}  // namespace

std::unique_ptr<File> Storage::create_unnamed(const Path& folder) {
  static std::atomic<std::uint64_t> count{0};
  std::random_device random;
  const Path path =
      folder / fmt::format(".unishard-unnamed-{:08x}{:08x}-{}", random(), random(), ++count);
  std::unique_ptr<File> file = create(path);
  remove_file(path);
  return file;
}

Storage& posix_storage() {
  static PosixStorage storage;
  return storage;
}

}  // namespace unishard
