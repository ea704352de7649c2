#pragma once
// The sole right to write one output, across the processes of all hosts that see its folder.
#include "unishard/format/storage.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <string_view>

namespace unishard {

/// Held for the life of the object. Movable. Thread-safe.
class OutputLock {
 public:
  /// Removing a checkpoint takes its lock as well, for as long as renaming it takes.
  static constexpr std::chrono::milliseconds kPatience{500};

  /// Locks `what`, an output's path as messages show it, by the file `lock_file`. Throws Busy,
  /// naming host, process and start of the writer that still has it after `patience`, and what
  /// raise_errno() does.
  OutputLock(Storage& storage, const Path& lock_file, const Path& what,
             std::chrono::milliseconds patience = kPatience);

  /// Locks the file or folder `output` by lock_name() beside it. Pre: its parent folder exists.
  static OutputLock beside(Storage& storage, const Path& output,
                           std::chrono::milliseconds patience = kPatience);
  /// The same, but returns nothing where another process has the lock or it cannot be taken.
  static std::optional<OutputLock> try_beside(Storage& storage, const Path& output);

  /// Throws Busy when another process has taken the lock over because this one seemed dead.
  void require_held() const;

 private:
  OutputLock(std::unique_ptr<NameLock> lock, Path what);
  std::unique_ptr<NameLock> lock_;
  Path what_;
};

/// The folder of `path`: "." for a plain name.
Path parent_folder(const Path& path);

}  // namespace unishard
