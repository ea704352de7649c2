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

void refuse_dangling_link(const Path& path) {
  std::error_code code;
  if (!std::filesystem::is_symlink(path, code) || std::filesystem::exists(path, code)) return;
  raise(ErrorCode::AlreadyExists,
        fmt::format("{} is a link to something that does not exist", path.native()),
        "create its target, remove the link, or choose another output");
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

StagedText::StagedText(Storage& storage, Path path, std::string_view text)
    : storage_(storage),
      path_(std::move(path)),
      staged_(marked_name(path_.native(), kPartialMark, new_save_id())) {
  try {
    const auto file = storage_.create(staged_);
    file->write_at(0, std::as_bytes(std::span(text)));
    file->sync();
    file->close();
  } catch (...) {
    discard();
    throw;
  }
}

StagedText::~StagedText() {
  if (!staged_.empty()) discard();
}

void StagedText::commit() {
  storage_.rename(staged_, path_);
  staged_.clear();
  storage_.sync_directory(path_.has_parent_path() ? path_.parent_path() : Path("."));
}

void StagedText::discard() noexcept {
  try {
    storage_.remove_tree(staged_);
  } catch (const std::exception&) {  // its name says that it is no result
  }
}

void replace_text(Storage& storage, const Path& path, std::string_view text) {
  StagedText(storage, path, text).commit();
}

}  // namespace unishard
