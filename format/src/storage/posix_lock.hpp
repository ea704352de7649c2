#pragma once
// Implements Storage::try_lock() on POSIX systems; posix_lock.cpp describes the protocol.
#include "unishard/format/storage.hpp"

namespace unishard {

/// Pre: the folder of `path` exists.
/// Throws: what raise_errno() throws.
LockAttempt try_posix_lock(const Path& path, const std::string& description);

}  // namespace unishard
