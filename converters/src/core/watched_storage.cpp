#include "core/watched_storage.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

namespace unishard::converters {

std::unique_ptr<File> WatchedStorage::open(const Path& path) {
  auto file = storage_.open(path);
  if (!path.filename().native().starts_with("latest")) {
    const std::scoped_lock lock(mutex_);
    first_stamps_.try_emplace(path, file->stamp());
  }
  return file;
}

void WatchedStorage::require_unchanged() const {
  const auto seen = [&] {
    const std::scoped_lock lock(mutex_);
    return first_stamps_;
  }();
  for (const auto& [path, stamp] : seen) {
    if (storage_.kind(path) != EntryKind::File) continue;
    if (storage_.open(path)->stamp() == stamp) continue;
    raise(ErrorCode::Busy,
          fmt::format("{} was written while it was read: what was read may be of two saves",
                      path.string()),
          "wait until its program has saved, and start again; nothing was published");
  }
}

}  // namespace unishard::converters
