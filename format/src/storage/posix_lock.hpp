#pragma once
// Implements Storage::try_lock() on POSIX systems; posix_lock.cpp describes the protocol.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <string>

namespace unishard {

/// The contents of a lock file.
struct LockOwner {
  std::string token;        ///< no other owner has it
  std::string boot;         ///< id of the boot of its kernel
  std::string description;  ///< for people
  std::string host;         ///< name of its host; empty in files of older versions
};

/// The kernel that a process runs under.
struct Kernel {
  std::string boot;
  std::string host;
  std::int64_t booted_unix_seconds = 0;
};

/// Returns true when the owner died with its host, which has been booted since: a host of this
/// name, another boot, and no sign of life (`renewed_unix_seconds`, the file's time) since this
/// boot. The time makes two hosts of one name safe: a living owner renews it.
bool died_with_host(const LockOwner& owner, std::int64_t renewed_unix_seconds, const Kernel& here);

/// Pre: the folder of `path` exists.
/// Throws: what raise_errno() throws.
LockAttempt try_posix_lock(const Path& path, const std::string& description);

}  // namespace unishard
