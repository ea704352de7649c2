#pragma once
// Exclusive right to write one output, among the processes of all hosts that share its folder.
#include "unishard/format/storage.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <string_view>

namespace unishard {

/// Holds the right until it is destroyed. Movable. Thread-safe.
class OutputLock {
 public:
  /// Default time to wait for the lock. Removing a checkpoint takes its lock for the time of a
  /// rename.
  static constexpr std::chrono::milliseconds kPatience{500};

  /// Locks by the file `lock_file`. Messages name the output `what`.
  /// Throws: Busy, naming host, process and start time of the writer that still holds the lock
  /// after `patience`; what Storage::try_lock() throws.
  OutputLock(Storage& storage, const Path& lock_file, const Path& what,
             std::chrono::milliseconds patience = kPatience);

  /// Locks the file or folder `output` by lock_name() in the same folder.
  /// Pre: the parent folder of `output` exists.
  static OutputLock beside(Storage& storage, const Path& output,
                           std::chrono::milliseconds patience = kPatience);
  /// Does the same without patience, and returns nullopt when the lock cannot be taken.
  static std::optional<OutputLock> try_beside(Storage& storage, const Path& output);

  /// Throws Busy when another process has taken the lock over because this process seemed dead.
  void require_held() const;

 private:
  OutputLock(std::unique_ptr<NameLock> lock, Path what);
  std::unique_ptr<NameLock> lock_;
  Path what_;
};

/// Returns the folder of `path`; "." for a plain name.
Path parent_folder(const Path& path);

}  // namespace unishard
