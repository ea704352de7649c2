#include "unishard/format/error.hpp"
#include "unishard/format/memory.hpp"
#include "unishard/format/staging_names.hpp"
#include "unishard/format/storage.hpp"

#include <fmt/format.h>

namespace unishard {

std::string read_text(Storage& storage, const Path& path, std::uint64_t limit_bytes) {
  const auto file = storage.open(path);
  const std::uint64_t size = file->size();
  if (size > limit_bytes) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} bytes exceed the limit of {}", path.native(), size, limit_bytes));
  }
  MemoryBudget(path.native()).charge(size);
  std::string text(size, '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::vector<Path> make_durable_directory(Storage& storage, const Path& path) {
  std::vector<Path> missing, parents;  // deepest first
  for (Path folder = path.has_filename() ? path : path.parent_path();
       storage.kind(folder) == EntryKind::Missing;) {
    const Path parent = folder.has_parent_path() ? folder.parent_path() : Path(".");
    if (parent == folder) break;  // a root, or ".", that the storage has no entry for
    missing.push_back(folder);
    parents.push_back(parent);
    folder = parent;
  }
  storage.make_directory(path);
  for (const Path& parent : parents) storage.sync_directory(parent);
  return missing;
}

void remove_if_empty(Storage& storage, const std::vector<Path>& folders) noexcept {
  try {
    for (const Path& folder : folders) storage.remove_directory(folder);
  } catch (const std::exception&) {  // not empty: somebody uses it
  }
}

Path write_beside(Storage& storage, const Path& path, std::string_view text) {
  Path beside = marked_name(path.native(), kPartialMark, new_save_id());
  try {
    const auto file = storage.create(beside);
    file->write_at(0, std::as_bytes(std::span(text)));
    file->sync();
    file->close();
  } catch (...) {
    discard(storage, beside);
    throw;
  }
  return beside;
}

void discard(Storage& storage, const Path& beside) noexcept {
  try {
    storage.remove_tree(beside);
  } catch (const std::exception&) {  // its name says that it is no result
  }
}

void replace_text(Storage& storage, const Path& path, std::string_view text) {
  const Path beside = write_beside(storage, path, text);
  try {
    storage.rename(beside, path);
  } catch (...) {
    discard(storage, beside);
    throw;
  }
  storage.sync_directory(path.has_parent_path() ? path.parent_path() : Path("."));
}

}  // namespace unishard
