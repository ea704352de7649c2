#pragma once
// Implements Storage::try_lock() on POSIX systems; posix_lock.cpp describes the protocol.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <string>

namespace unishard {

/// Content of a lock file.
struct LockOwner {
  std::string token;        ///< unique to this owner
  std::string boot;         ///< boot id of its kernel
  std::string description;  ///< for people
  std::string host;         ///< name of its host; empty in files of older versions
};

/// The kernel under which a process runs.
struct Kernel {
  std::string boot;
  std::string host;
  std::int64_t booted_unix_seconds = 0;
};

/// Returns true when the owner died with its host, because a host of the same name has booted
/// since: the boot id differs, and the file's time `renewed_unix_seconds` is before this boot. Two
/// hosts of the same name are safe, because a living owner renews the time.
bool died_with_host(const LockOwner& owner, std::int64_t renewed_unix_seconds, const Kernel& here);

/// Pre: the folder of `path` exists.
/// Throws: what raise_errno() throws.
LockAttempt try_posix_lock(const Path& path, const std::string& description);

}  // namespace unishard
