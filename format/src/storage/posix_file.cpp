// One open file. Reads of at least kDirectBytes, and all writes to files of at least one block,
// bypass the page cache through a second descriptor with O_DIRECT:
//  - A read transfers the aligned window around its bytes, block by block, through a block of the
//  pool
//    or directly into aligned memory. Cached bytes are read from the cache instead.
//  - Writes are collected into whole blocks (WriteBehind). Bytes that never fill a block are
//  written
//    through the page cache, at the latest by sync() or close().
// If the file system refuses O_DIRECT, at open or later, all transfers use the page cache.
#include "storage/posix_file.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/io.hpp"

#include "storage/block_pool.hpp"
#include "storage/write_behind.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

namespace unishard {
namespace {

constexpr std::uint64_t kDirectBytes = std::uint64_t{128} << 10;  ///< smallest direct read
// Alignment of direct access; the alignment of every device divides it.
constexpr std::uint64_t kAlignment = 4096;

std::uint64_t round_down(std::uint64_t value) { return value / kAlignment * kAlignment; }
std::uint64_t round_up(std::uint64_t value) { return round_down(value + kAlignment - 1); }

// Returns true when half of [offset, offset + bytes) is in the page cache; false when the kernel
// (before 6.5) cannot tell.
bool is_half_cached(int descriptor, std::uint64_t offset, std::uint64_t bytes) {
#ifdef SYS_cachestat
  constexpr long call = SYS_cachestat;
#else
  constexpr long call = 451;  // the same on every architecture
#endif
  struct Range {
    std::uint64_t offset, bytes;
  } range{offset, bytes};
  struct Pages {
    std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } pages{};
  if (::syscall(call, descriptor, &range, &pages, 0u) != 0) return false;
  return pages.cached * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) >= bytes / 2;
}

// Returns the alignment of addresses and offsets that O_DIRECT requires for this file; 0 when
// O_DIRECT does not work, or the kernel (before 6.1) cannot tell.
std::uint32_t direct_alignment(int descriptor) {
  struct statx status {};
  if (::syscall(SYS_statx, descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) return 0;
  if ((status.stx_mask & STATX_DIOALIGN) == 0) return 0;
  return std::max(status.stx_dio_mem_align, status.stx_dio_offset_align);
}

// Opens the same file again with O_DIRECT; returns -1 when that is not possible.
int open_direct(int descriptor, bool writable) {
  const std::uint32_t align = direct_alignment(descriptor);
  if (align == 0 || kAlignment % align != 0) return -1;
  const int flags = (writable ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC;
  return ::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), flags);
}

// The destructor closes the file; close() also reports failures, which the destructor ignores.
class PosixFile final : public File {
 public:
  PosixFile(Path path, int descriptor, bool writable)
      : path_(std::move(path)), descriptor_(descriptor), writable_(writable), io_(io_options()) {
    if (writable_) collect_writes(size(), false);
  }
  ~PosixFile() override {
    try {
      flush();
    } catch (const std::exception&) {  // close() would have told
    }
    if (direct_ >= 0) ::close(direct_);
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  std::uint64_t size() const override { return stamp().bytes; }

  FileStamp stamp() const override {
    constexpr std::int64_t kSecond = 1'000'000'000;
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0)
      raise_errno("reading the size of", path_.native(), errno);
    const std::int64_t seconds = std::clamp<std::int64_t>(
        status.st_mtim.tv_sec, 0, std::numeric_limits<std::int64_t>::max() / kSecond - 1);
    return {.bytes = static_cast<std::uint64_t>(status.st_size),
            .modified_ns = seconds * kSecond + status.st_mtim.tv_nsec};
  }

  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (pending_) pending_->flush(offset, offset + out.size());
    if (reads_direct(offset, out.size())) {
      read_direct(offset, out);
    } else {
      read_buffered(offset, out);
    }
  }

  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    if (pending_ && offset <= collected_bytes_ && bytes.size() <= collected_bytes_ - offset) {
      pending_->write(offset, bytes);
    } else {
      write_through(descriptor_, offset, bytes);
    }
  }

  void write_now(std::uint64_t offset, std::span<const std::byte> bytes) override {
    if (!bypasses_cache()) return write_through(descriptor_, offset, bytes);
    bypasses_cache_ = true;
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment == 0)
      return write_through(direct_, offset, bytes);
    const BlockPool::Block block = block_pool().take(io_.read_buffer_bytes);
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min(bytes.size(), kBlockBytes));
      std::memcpy(block.bytes().data(), part.data(), part.size());
      write_through(direct_, offset, block.bytes().first(part.size()));
      offset += part.size();
      bytes = bytes.subspan(part.size());
    }
  }

  void reserve(std::uint64_t bytes) override {
    if (bytes == 0) return;
    const std::uint64_t before = size();
    int error = has_space(bytes) ? allocate(bytes) : ENOSPC;
    if (error == EOPNOTSUPP || error == ENOSYS)  // then the size alone, without the space
      error = before < bytes ? set_size(bytes) : 0;
    if (error != 0) {
      set_size(before);  // what was allocated on the way
      raise_errno(fmt::format("reserving {} bytes for", bytes), path_.native(), error);
    }
    collect_writes(bytes, before == 0);
  }

  void resize(std::uint64_t bytes) override {
    flush();
    pending_.reset();  // its blocks end where the file ended
    if (const int error = set_size(bytes); error != 0)
      raise_errno(fmt::format("setting the size {} of", bytes), path_.native(), error);
  }

  void sync() override {
    flush();
    if (::fsync(descriptor_) != 0) raise_errno("syncing", path_.native(), errno);
  }

  void close() override {
    flush();
    pending_.reset();
    if (const int direct = std::exchange(direct_, -1); direct >= 0) ::close(direct);
    const int descriptor = std::exchange(descriptor_, -1);
    if (descriptor >= 0 && ::close(descriptor) != 0) raise_errno("closing", path_.native(), errno);
  }

  const Path& path() const override { return path_; }

  bool bypasses_cache() const override { return io_.mode != IoMode::Buffered && has_direct(); }

 private:
  void collect_writes(std::uint64_t file_bytes, bool is_zero) {
    if (pending_ || file_bytes < kBlockBytes || !bypasses_cache()) return;
    collected_bytes_ = file_bytes;
    pending_ = std::make_unique<WriteBehind>(
        WriteBehind::Limits{file_bytes, io_.write_buffer_bytes, is_zero},
        [this](std::uint64_t offset, std::span<const std::byte> bytes) {
          write_through(has_direct() ? direct_ : descriptor_, offset, bytes);
        },
        [this](std::uint64_t offset, std::span<const std::byte> bytes) {
          write_through(descriptor_, offset, bytes);
        });
  }

  // Returns false when the file system reports too little free space. Without this check,
  // fallocate() would take all that is left from other programs until it fails.
  bool has_space(std::uint64_t bytes) const {
    struct stat file {};
    struct statvfs system {};
    if (::fstat(descriptor_, &file) != 0 || ::fstatvfs(descriptor_, &system) != 0) return true;
    const std::uint64_t taken = static_cast<std::uint64_t>(file.st_blocks) * 512;
    return bytes <= taken || (bytes - taken) / system.f_frsize <= system.f_bavail;
  }

  // These return 0 or an error number.
  int allocate(std::uint64_t bytes) {
    int result = 0;
    do {
      result = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
  }
  int set_size(std::uint64_t bytes) {
    return ::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  }

  void flush() {
    if (pending_) pending_->flush(0, std::numeric_limits<std::uint64_t>::max());
  }

  // Opens the second descriptor at first use, because a checkpoint may have thousands of files.
  bool has_direct() const {
    std::call_once(direct_once_, [this] {
      direct_ = open_direct(descriptor_, writable_);
      direct_works_ = direct_ >= 0;
    });
    return direct_works_;
  }

  bool reads_direct(std::uint64_t offset, std::uint64_t bytes) const {
    if (bypasses_cache_) return true;
    if (bytes < kDirectBytes || !bypasses_cache()) return false;
    if (io_.mode == IoMode::Direct) return true;
    return !is_cached(offset, bytes);
  }

  // Returns true when at least half of the range and half of the whole file are cached. A few
  // cached pages may come from the kernel's read-ahead alone; reading them through the cache would
  // make the kernel read ahead further.
  bool is_cached(std::uint64_t offset, std::uint64_t bytes) const {
    std::call_once(cached_once_,
                   [this] { is_file_cached_ = is_half_cached(descriptor_, 0, size()); });
    return is_file_cached_ && is_half_cached(descriptor_, offset, bytes);
  }

  // Makes one direct read. Returns false when the kernel refuses it; direct reads then stay off.
  bool read_window(std::uint64_t offset, std::span<std::byte> window, std::size_t& count) const {
    ssize_t result = 0;
    do {
      result = ::pread(direct_, window.data(), window.size(), static_cast<off_t>(offset));
    } while (result < 0 && errno == EINTR);
    if (result < 0 && errno == EINVAL) {
      direct_works_ = false;
      return false;
    }
    if (result < 0) raise_errno("reading", path_.native(), errno);
    count = static_cast<std::size_t>(result);
    return true;
  }

  void read_direct(std::uint64_t offset, std::span<std::byte> out) const {
    BlockPool::Block block;  // not taken when `out` is aligned: it may be a block itself
    while (!out.empty()) {
      const std::uint64_t begin = round_down(offset);
      const bool in_place = offset == begin && out.size() >= kAlignment &&
                            reinterpret_cast<std::uintptr_t>(out.data()) % kAlignment == 0;
      if (!in_place && block.bytes().empty()) block = block_pool().take(io_.read_buffer_bytes);
      const std::span<std::byte> window =
          in_place ? out.first(round_down(out.size()))
                   : block.bytes().first(std::min<std::uint64_t>(
                         kBlockBytes, round_up(offset + out.size()) - begin));
      std::size_t count = 0;
      if (!read_window(begin, window, count)) return read_buffered(offset, out);
      const std::size_t skip = offset - begin;
      if (count <= skip) raise_truncated(offset, out.size());
      const std::size_t got = std::min(count - skip, out.size());
      if (!in_place) std::memcpy(out.data(), window.data() + skip, got);
      offset += got;
      out = out.subspan(got);
      // A short read is the end of the file, or leaves an unaligned offset.
      if (count < window.size() && !out.empty()) return read_buffered(offset, out);
    }
  }

  void read_buffered(std::uint64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
      const ssize_t count =
          ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) raise_errno("reading", path_.native(), errno);
      if (count == 0) raise_truncated(offset, out.size());
      offset += static_cast<std::uint64_t>(count);
      out = out.subspan(static_cast<std::size_t>(count));
    }
  }

  [[noreturn]] void raise_truncated(std::uint64_t offset, std::uint64_t bytes) const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: truncated: the file ends at byte {}, but bytes {} to {} are needed",
                      path_.native(), size(), offset, offset + bytes));
  }

  void write_through(int descriptor, std::uint64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count =
          ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EINVAL && descriptor != descriptor_) {
        direct_works_ = false;
        descriptor = descriptor_;
        continue;
      }
      if (count <= 0) raise_errno("writing", path_.native(), count == 0 ? EIO : errno);
      offset += static_cast<std::uint64_t>(count);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

  const Path path_;
  int descriptor_;
  const bool writable_;
  const IoOptions io_;
  mutable std::once_flag direct_once_, cached_once_;
  mutable int direct_ = -1;
  mutable std::atomic<bool> direct_works_{false};
  // Set by write_now(): a page that is being read into the cache would keep what is overwritten
  // meanwhile past the cache.
  std::atomic<bool> bypasses_cache_{false};
  mutable bool is_file_cached_ = false;
  std::unique_ptr<WriteBehind> pending_;
  std::uint64_t collected_bytes_ = 0;  // `pending_` collects writes up to this offset
};

std::mutex process_mutex;
IoOptions process_options;

}  // namespace

std::optional<IoMode> io_mode_from_name(std::string_view name) {
  if (name == "auto") return IoMode::Auto;
  if (name == "direct") return IoMode::Direct;
  if (name == "buffered") return IoMode::Buffered;
  return std::nullopt;
}

IoOptions IoOptions::within(std::uint64_t memory_bytes, IoMode mode) {
  IoOptions options{.mode = mode};
  options.write_buffer_bytes = std::min(options.write_buffer_bytes, memory_bytes / 4);
  options.read_buffer_bytes = std::min(options.read_buffer_bytes, memory_bytes / 16);
  return options;
}

void configure_io(const IoOptions& wanted) {
  const std::scoped_lock lock(process_mutex);
  process_options = wanted;
}

IoOptions io_options() {
  const std::scoped_lock lock(process_mutex);
  return process_options;
}

std::unique_ptr<File> make_posix_file(Path path, int descriptor, bool writable) {
  return std::make_unique<PosixFile>(std::move(path), descriptor, writable);
}

}  // namespace unishard
