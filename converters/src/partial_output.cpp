#include "partial_output.hpp"

#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/leftover.hpp"

#include <fmt/format.h>

namespace unishard::converters {
namespace {

Path parent_of(const Path& path) { return path.has_parent_path() ? path.parent_path() : Path("."); }

void check_free(Storage& storage, const Path& output, bool is_folder) {
  const EntryKind kind = storage.kind(output);
  if (kind == EntryKind::Missing) return;
  const bool empty_folder = is_folder && kind == EntryKind::Directory;
  if (empty_folder && storage.list(output).empty()) return;
  raise(ErrorCode::AlreadyExists,
        fmt::format("{} {}", output.string(), empty_folder ? "is not empty" : "is there already"),
        "choose another output, or remove it first; nothing was overwritten");
}

/// What a killed run of the same output left: nobody else clears it up.
void remove_leftovers(Storage& storage, const Path& output) {
  const std::string name = output.filename().string();
  for (const Entry& entry : storage.list(parent_of(output))) {
    const std::size_t id_digits = 32;
    if (is_partial_name(entry.name) && entry.name.substr(0, entry.name.size() - id_digits) ==
                                           marked_name(name, kPartialMark, {})) {
      storage.remove_tree(parent_of(output) / entry.name);
    }
  }
}

}  // namespace

PartialOutput::PartialOutput(Storage& storage, Path output, Shape shape, const Share& share)
    : storage_(storage),
      output_(output.has_filename() ? std::move(output) : output.parent_path()),  // "folder/"
      partial_(parent_of(output_) / marked_name(output_.filename().string(), kPartialMark,
                                                share.id.empty() ? new_save_id() : share.id)),
      shape_(shape),
      is_owner_(share.rank == 0) {
  if (!is_owner_) return;
  check_free(storage, output_, shape == Shape::Folder);
  storage.make_directory(parent_of(output_));
  remove_leftovers(storage, output_);
  if (shape == Shape::Folder) storage.create_directory(partial_);
}

PartialOutput::~PartialOutput() {
  if (published_ || !is_owner_) return;
  try {
    storage_.remove_tree(partial_);
  } catch (...) {
    // Its name carries ".partial-": nothing takes it for a result.
  }
}

void PartialOutput::publish() {
  if (shape_ == Shape::Folder) {
    storage_.sync_directory(partial_);
  } else if (storage_.kind(output_) != EntryKind::Missing) {
    raise(ErrorCode::AlreadyExists, fmt::format("{} was created meanwhile", output_.string()));
  }
  storage_.rename(partial_, output_);
  published_ = true;
  storage_.sync_directory(parent_of(output_));
}

}  // namespace unishard::converters
