#pragma once
// Storage::try_lock() on POSIX systems; see posix_lock.cpp.
#include "unishard/format/storage.hpp"

namespace unishard {

/// Pre: the folder of `path` exists. Throws what raise_errno() does.
LockAttempt try_posix_lock(const Path& path, const std::string& description);

}  // namespace unishard
