#include "core/partial_output.hpp"

#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/staging_names.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

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

/// The result of a folder replaces an empty one, which no program must stand in or mount upon.
void require_replaceable(const Path& folder) {
  struct stat own {};
  struct stat parent {};
  const bool is_mount = ::stat(folder.c_str(), &own) == 0 &&
                        ::stat((folder / "..").c_str(), &parent) == 0 &&
                        own.st_dev != parent.st_dev;
  std::error_code code;
  const bool is_working_folder = std::filesystem::equivalent(folder, ".", code);
  if (!is_mount && !is_working_folder) return;
  raise(ErrorCode::InvalidArgument,
        fmt::format("{} is {}, which a result cannot replace", folder.string(),
                    is_mount ? "a mount point" : "the working folder"),
        fmt::format("name a folder in it, such as {}; nothing was written",
                    (folder / "model").string()));
}

/// Gives `to` owner, group and mode of `from`, as far as this user may; `more` is added to the
/// mode.
void adopt_rights(const Path& from, const Path& to, mode_t more) {
  struct stat rights {};
  if (::stat(from.c_str(), &rights) != 0) return;
  if (::chown(to.c_str(), rights.st_uid, rights.st_gid) != 0 &&
      ::chown(to.c_str(), static_cast<uid_t>(-1), rights.st_gid) != 0)
    rights.st_mode &= ~static_cast<mode_t>(S_ISGID | S_ISUID);
  ::chmod(to.c_str(), (rights.st_mode & 07777) | more);
}

/// Removes the lock of a process that was killed after it had published `output`. That of a living
/// one stays.
void remove_dead_lock(Storage& storage, const Path& output) {
  const Path lock = parent_folder(output) / lock_name(output.filename().native());
  if (storage.kind(lock) == EntryKind::File) OutputLock::try_beside(storage, output);
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
  if (storage.kind(output_) != EntryKind::Missing) remove_dead_lock(storage, output_);
  check_free(storage, output_, shape == Shape::Folder);
  const bool replaces = storage.kind(output_) == EntryKind::Directory;
  if (replaces) require_replaceable(output_);
  made_folders_ = make_durable_directory(storage, parent_folder(output_));
  lock_.emplace(OutputLock::beside(storage, output_));
  check_free(storage, output_, shape == Shape::Folder);  // another writer may just have published
  remove_dead_staging(storage, parent_folder(output_), output_.filename().string());
  if (shape == Shape::Folder) storage.create_directory(partial_);
  if (replaces) adopt_rights(output_, partial_, S_IRWXU);
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
    adopt_rights(output_, partial_, 0);
    storage_.rename(partial_, output_);  // replaces an empty folder, and no other
  } else {
    storage_.rename_new(partial_, output_);
  }
  published_ = true;
  storage_.sync_directory(parent_folder(output_));
}

}  // namespace unishard::converters
