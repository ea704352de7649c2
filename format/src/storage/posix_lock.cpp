// A process owns a lock file while it holds flock() on it. The file has four lines: a token that no
// other owner has, the boot id of the owner's kernel, a description for people, and the name of the
// host. The owner removes the file before it releases the lock.
//
// Some network file systems apply flock() within one host only, or do not support it. The owner
// therefore renews the file's modification time every few seconds. A process that obtains flock()
// on a file with another owner's token concludes:
// clang-format off
//  - same boot id: flock() would have excluded a living owner, so the owner is dead;
//  - another boot id of this host, and no renewal since this boot: the owner died with the last boot;
//  - another boot id otherwise, or no flock() at all: the owner is alive if the time changes while
//    the process watches, and dead if it has not changed for kStale.
// clang-format on
#include "storage/posix_lock.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/staging_names.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace unishard {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kBeat{5};
constexpr std::chrono::seconds kStale{30};
constexpr std::chrono::milliseconds kLook{200};
constexpr std::int64_t kLongAgoSeconds = std::int64_t{6} * 3600;
constexpr std::size_t kTextBytes = 4096;

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }

 private:
  int number_;
};

std::string text_of(const LockOwner& owner) {
  return fmt::format("{}\n{}\n{}\n{}\n", owner.token, owner.boot, owner.description, owner.host);
}

std::string read_some(int descriptor) {
  std::array<char, kTextBytes> bytes{};
  const ssize_t count = ::pread(descriptor, bytes.data(), bytes.size(), 0);
  return count > 0 ? std::string(bytes.data(), static_cast<std::size_t>(count)) : std::string();
}

std::string read_file(const char* path) {
  const Descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  return file.get() < 0 ? std::string() : read_some(file.get());
}

std::string first_line(std::string& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string line = text.substr(0, end);
  text.erase(0, std::min(end + 1, text.size()));
  return line;
}

LockOwner parse_owner(std::string text) {
  LockOwner owner;
  owner.token = first_line(text);
  owner.boot = first_line(text);
  owner.description = first_line(text);
  owner.host = first_line(text);
  return owner;
}

std::string boot_id() {
  std::string text = read_file("/proc/sys/kernel/random/boot_id");
  return first_line(text);
}

Kernel this_kernel() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {};
  timespec up{};
  // Where the time is unknown, no renewal is older than the boot.
  const bool is_known = ::clock_gettime(CLOCK_BOOTTIME, &up) == 0;
  return {boot_id(), host.data(), is_known ? std::time(nullptr) - up.tv_sec : 0};
}

struct FileTime {
  dev_t device = 0;
  ino_t inode = 0;
  timespec modified{};
  bool same_file(const FileTime& other) const {
    return device == other.device && inode == other.inode;
  }
  bool same_time(const FileTime& other) const {
    return modified.tv_sec == other.modified.tv_sec && modified.tv_nsec == other.modified.tv_nsec;
  }
};

FileTime time_of(const struct stat& status) {
  return {status.st_dev, status.st_ino, status.st_mtim};
}

std::optional<FileTime> look_at(const Path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return time_of(status);
}

FileTime look_at(int descriptor, const Path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) raise_errno("looking at", path.native(), errno);
  return time_of(status);
}

enum class Flock { Held, Refused, Unknown };

Flock flock_of(int descriptor, const Path& path) {
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return Flock::Refused;
    if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL)
      return Flock::Unknown;
    raise_errno("locking", path.native(), errno);
  }
  return Flock::Held;
}

/// Watches a file whose owner flock() does not reveal; returns true when the owner is dead or the
/// file is gone. A time several hours behind this host's clock needs no watching, because clocks
/// differ by less.
bool is_stale(const Path& path, const FileTime& first) {
  if (std::time(nullptr) - first.modified.tv_sec > kLongAgoSeconds) return true;
  for (const auto until = Clock::now() + kStale; Clock::now() < until;) {
    std::this_thread::sleep_for(kLook);
    const auto now = look_at(path);
    if (!now || !now->same_file(first)) return true;
    if (!now->same_time(first)) return false;
  }
  return true;
}

class PosixLock final : public NameLock {
 public:
  PosixLock(Path path, Descriptor file, LockOwner owner)
      : path_(std::move(path)), file_(std::move(file)), owner_(std::move(owner)) {
    try {
      heart_ = std::jthread([this](const std::stop_token& stop) { beat(stop); });
    } catch (const std::system_error&) {
      // No thread can start. The flock() alone excludes the processes of this host.
    }
  }
  ~PosixLock() override {
    heart_.request_stop();
    if (heart_.joinable()) heart_.join();
    if (still_held()) ::unlink(path_.c_str());
  }
  PosixLock(const PosixLock&) = delete;
  PosixLock& operator=(const PosixLock&) = delete;

  bool still_held() const override {
    const auto named = look_at(path_);
    struct stat ours {};
    return named && ::fstat(file_.get(), &ours) == 0 && named->same_file(time_of(ours)) &&
           parse_owner(read_some(file_.get())).token == owner_.token;
  }

 private:
  void beat(const std::stop_token& stop) const {
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, stop, kBeat, [&] { return stop.stop_requested(); }))
      ::futimens(file_.get(), nullptr);
  }

  const Path path_;
  const Descriptor file_;
  const LockOwner owner_;
  std::jthread heart_;  // last: it uses the others
};

/// Takes ownership of the file. Pre: its owner, if any, is dead.
LockAttempt take(const Path& path, Descriptor file, const std::string& description) {
  const Kernel here = this_kernel();
  LockOwner owner{new_save_id(), here.boot, description, here.host};
  const std::string text = text_of(owner);
  int error = ::ftruncate(file.get(), 0) == 0 ? 0 : errno;
  for (std::size_t done = 0; error == 0 && done < text.size();) {
    const ssize_t count =
        ::pwrite(file.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      error = count == 0 ? EIO : errno;
    }
  }
  if (error != 0) {
    ::unlink(path.c_str());
    raise_errno("writing", path.native(), error);
  }
  return {std::make_unique<PosixLock>(path, std::move(file), std::move(owner)), {}};
}

/// Refuses to overwrite a file of this name that is not a lock file. After a crash, a lock file may
/// hold the beginning of a token, or zeros.
void require_lock_file(int descriptor, const Path& path, const LockOwner& owner) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) raise_errno("looking at", path.native(), errno);
  const bool is_token = owner.token.size() <= kSaveIdDigits &&
                        owner.token.find_first_not_of("0123456789abcdef") == std::string::npos;
  const bool is_zeros = owner.token.find_first_not_of('\0') == std::string::npos;
  const bool has_other_names = status.st_nlink > 1;
  if (S_ISREG(status.st_mode) && !has_other_names && (is_token || is_zeros)) return;
  raise(ErrorCode::AlreadyExists,
        fmt::format("{} is not a lock file that UniShard made", path.native()),
        "move it away; nothing was written");
}

}  // namespace

bool died_with_host(const LockOwner& owner, std::int64_t renewed_unix_seconds, const Kernel& here) {
  return !owner.host.empty() && owner.host == here.host && owner.boot != here.boot &&
         renewed_unix_seconds < here.booted_unix_seconds;
}

LockAttempt try_posix_lock(const Path& path, const std::string& description) {
  for (;;) {
    Descriptor file(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    if (file.get() < 0) {
      if (errno == EINTR) continue;
      raise_errno("creating the lock file", path.native(), errno);
    }
    const Flock flock = flock_of(file.get(), path);
    const LockOwner owner = parse_owner(read_some(file.get()));
    if (flock == Flock::Refused) return {nullptr, owner.description};
    require_lock_file(file.get(), path, owner);
    const FileTime time = look_at(file.get(), path);
    const auto named = look_at(path);
    if (!named || !named->same_file(time)) continue;  // its owner has just removed it
    const Kernel here = this_kernel();
    const bool is_free = owner.token.empty() || (flock == Flock::Held && owner.boot == here.boot) ||
                         died_with_host(owner, time.modified.tv_sec, here) || is_stale(path, time);
    if (!is_free) return {nullptr, owner.description};
    if (const auto now = look_at(path); !now || !now->same_file(time)) continue;
    return take(path, std::move(file), description);
  }
}

}  // namespace unishard
