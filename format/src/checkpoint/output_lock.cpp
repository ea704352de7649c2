#include "unishard/format/output_lock.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/staging_names.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <thread>
#include <utility>

namespace unishard {
namespace {

/// Returns, for example, "process 4711 (train_gpt) on node3 since 2026-01-31 12:00:00 UTC".
std::string describe_this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {"an unknown host"};
  return fmt::format("process {} ({}) on {} since {:%Y-%m-%d %H:%M:%S} UTC", ::getpid(),
                     program_invocation_short_name, host.data(), fmt::gmtime(std::time(nullptr)));
}

}  // namespace

Path parent_folder(const Path& path) {
  return path.has_parent_path() ? path.parent_path() : Path(".");
}

OutputLock::OutputLock(std::unique_ptr<NameLock> lock, Path what)
    : lock_(std::move(lock)), what_(std::move(what)) {}

OutputLock::OutputLock(Storage& storage, const Path& lock_file, const Path& what,
                       std::chrono::milliseconds patience)
    : what_(what) {
  constexpr std::chrono::milliseconds kPause{10};
  const std::string description = describe_this_process();
  LockAttempt attempt = storage.try_lock(lock_file, description);
  for (auto waited = kPause; !attempt.lock && waited < patience; waited += kPause) {
    std::this_thread::sleep_for(kPause);
    attempt = storage.try_lock(lock_file, description);
  }
  if (!attempt.lock) {
    raise(ErrorCode::Busy,
          fmt::format("{} is being written by {}", what.native(),
                      attempt.holder.empty() ? "another process" : attempt.holder),
          "wait for it, stop it and what it has forked, or choose another output; nothing was "
          "written");
  }
  lock_ = std::move(attempt.lock);
}

OutputLock OutputLock::beside(Storage& storage, const Path& output,
                              std::chrono::milliseconds patience) {
  return {storage, parent_folder(output) / lock_name(output.filename().native()), output, patience};
}

std::optional<OutputLock> OutputLock::try_beside(Storage& storage, const Path& output) {
  try {
    return beside(storage, output, std::chrono::milliseconds(0));
  } catch (const Error&) {
    return std::nullopt;
  }
}

void OutputLock::require_held() const {
  if (lock_->still_held()) return;
  raise(
      ErrorCode::Busy,
      fmt::format("the lock of {} is no longer this process's: the folder was removed or moved, or "
                  "another process took over because this one seemed dead",
                  what_.native()),
      "nothing was published; look whether the folder is there, and for a second job with the "
      "same output");
}

}  // namespace unishard
