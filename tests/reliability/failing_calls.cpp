#include "failing_calls.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <string_view>

namespace unishard::test {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
std::atomic<bool> active{false};
std::atomic<std::uint64_t> calls{0};
std::atomic<std::uint64_t> failing_at{kNever};
std::atomic<int> failing_error{0};
std::atomic<const char*> failed{nullptr};
std::array<std::atomic<bool>, 4096> writable{};  ///< by descriptor: close() may report a failure

enum class Verdict { Works, Half, Fails };

/// Counts a call; says what becomes of it, and sets errno where it fails.
Verdict judge(const char* name, bool is_write = false) {
  if (!active || calls++ != failing_at) return Verdict::Works;
  const int error = failing_error;
  if (error == 0 && !is_write) return Verdict::Works;
  failed = name;
  if (error == 0) return Verdict::Half;
  errno = error;
  return Verdict::Fails;
}

bool fails(const char* name) { return judge(name) == Verdict::Fails; }

template <class Function>
Function* real(Function* /*replaced*/, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

void note_descriptor(int descriptor, int flags) {
  if (descriptor >= 0 && static_cast<std::size_t>(descriptor) < writable.size())
    writable[static_cast<std::size_t>(descriptor)] = (flags & O_ACCMODE) != O_RDONLY;
}

bool take_descriptor(int descriptor) {
  return descriptor >= 0 && static_cast<std::size_t>(descriptor) < writable.size() &&
         writable[static_cast<std::size_t>(descriptor)].exchange(false);
}

}  // namespace

void start_failing(FailingCall call) {
  calls = 0;
  failed = nullptr;
  failing_at = call.at;
  failing_error = call.error;
  active = true;
}

void start_counting() { start_failing({.at = kNever}); }

std::uint64_t stop_failing() {
  active = false;
  return calls;
}

std::string failed_call() { return failed == nullptr ? "" : failed.load(); }

}  // namespace unishard::test

using unishard::test::fails;
using unishard::test::judge;
using unishard::test::real;
using unishard::test::Verdict;

extern "C" {

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if (fails("open")) return -1;
  }
  static const auto call = real(&open, "open");
  const int descriptor = call(path, flags, mode);
  unishard::test::note_descriptor(descriptor, flags);
  return descriptor;
}

int close(int descriptor) {
  static const auto call = real(&close, "close");
  const bool may_fail = unishard::test::take_descriptor(descriptor);
  const int result = call(descriptor);  // Linux closes in any case
  return may_fail && fails("close") ? -1 : result;
}

ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t offset) {
  static const auto call = real(&pwrite, "pwrite");
  const Verdict verdict = judge("pwrite", true);
  if (verdict == Verdict::Fails) return -1;
  return call(descriptor, bytes, verdict == Verdict::Half && count > 1 ? count / 2 : count, offset);
}

int fsync(int descriptor) {
  static const auto call = real(&fsync, "fsync");
  return fails("fsync") ? -1 : call(descriptor);
}

int ftruncate(int descriptor, off_t bytes) noexcept {
  static const auto call = real(&ftruncate, "ftruncate");
  return fails("ftruncate") ? -1 : call(descriptor, bytes);
}

int fallocate(int descriptor, int mode, off_t offset, off_t bytes) {
  static const auto call = real(&fallocate, "fallocate");
  return fails("fallocate") ? -1 : call(descriptor, mode, offset, bytes);
}

int rename(const char* from, const char* to) noexcept {
  static const auto call = real(&rename, "rename");
  return fails("rename") ? -1 : call(from, to);
}

int link(const char* from, const char* to) noexcept {
  static const auto call = real(&link, "link");
  return fails("link") ? -1 : call(from, to);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static const auto call = real(&mkdir, "mkdir");
  return fails("mkdir") ? -1 : call(path, mode);
}

int unlink(const char* path) noexcept {
  static const auto call = real(&unlink, "unlink");
  return fails("unlink") ? -1 : call(path);
}

int rmdir(const char* path) noexcept {
  static const auto call = real(&rmdir, "rmdir");
  return fails("rmdir") ? -1 : call(path);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  static const auto call = real(&unlinkat, "unlinkat");
  return fails("unlinkat") ? -1 : call(folder, path, flags);
}

long syscall(long number, ...) noexcept {
  static const auto call = real(&syscall, "syscall");
  va_list arguments;
  va_start(arguments, number);
  std::array<long, 6> values{};
  for (long& value : values) value = va_arg(arguments, long);
  va_end(arguments);
  if (number == SYS_renameat2 && fails("renameat2")) return -1;
  return call(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}
}
