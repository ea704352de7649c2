#include "core/partial_output.hpp"

#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/staging_names.hpp"

#include <fmt/format.h>

namespace unishard::converters {
namespace {

/// Returns the path without a trailing slash and with links to folders resolved, so that the result
/// replaces no link.
Path real_output(Storage& storage, const Path& output) {
  Path plain = output.has_filename() ? output : output.parent_path();
  if (storage.kind(plain) != EntryKind::Directory) return plain;
  std::error_code code;
  Path real = std::filesystem::canonical(plain, code);
  return code ? plain : real;
}

void check_free(Storage& storage, const Path& output, bool is_folder) {
  const EntryKind kind = storage.kind(output);
  if (kind == EntryKind::Missing) return refuse_dangling_link(output);
  const bool is_empty_folder = is_folder && kind == EntryKind::Directory;
  if (is_empty_folder && storage.list(output).empty()) return;
  raise(
      ErrorCode::AlreadyExists,
      fmt::format("{} {}", output.string(), is_empty_folder ? "is not empty" : "is there already"),
      "choose another output, or remove it first; nothing was overwritten");
}

void sync_folders(Storage& storage, const Path& folder) {
  for (const Entry& entry : storage.list(folder)) {
    if (entry.kind == EntryKind::Directory) sync_folders(storage, folder / entry.name);
  }
  storage.sync_directory(folder);
}

}  // namespace

PartialOutput::PartialOutput(Storage& storage, const Path& output, Shape shape,
                             const WorkSplit& share)
    : storage_(storage),
      output_(real_output(storage, output)),
      partial_(parent_folder(output_) / marked_name(output_.filename().string(), kPartialMark,
                                                    share.id.empty() ? new_save_id() : share.id)),
      shape_(shape),
      is_owner_(share.rank == 0) {
  if (!is_owner_) return;
  check_free(storage, output_, shape == Shape::Folder);
  made_folders_ = make_durable_directory(storage, parent_folder(output_));
  lock_.emplace(OutputLock::beside(storage, output_));
  check_free(storage, output_, shape == Shape::Folder);  // another writer may just have published
  remove_dead_staging(storage, parent_folder(output_), output_.filename().string());
  if (shape == Shape::Folder) storage.create_directory(partial_);
}

PartialOutput::~PartialOutput() {
  if (published_ || !is_owner_) return;
  try {
    storage_.remove_tree(partial_);
    lock_.reset();
    remove_if_empty(storage_, made_folders_);
  } catch (...) {
    // Readers skip names with ".partial-".
  }
}

void PartialOutput::sync() {
  if (shape_ == Shape::Folder) sync_folders(storage_, partial_);
}

void PartialOutput::publish() {
  if (lock_) lock_->require_held();
  check_free(storage_, output_, shape_ == Shape::Folder);
  if (storage_.kind(output_) == EntryKind::Directory) {
    storage_.rename(partial_, output_);  // replaces an empty folder, and no other
  } else {
    storage_.rename_new(partial_, output_);
  }
  published_ = true;
  storage_.sync_directory(parent_folder(output_));
}

}  // namespace unishard::converters
