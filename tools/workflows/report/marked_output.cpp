#include "workflows/report/marked_output.hpp"

#include "unishard/format/error.hpp"

#include "workflows/native_folder.hpp"

#include <fmt/format.h>

#include <span>
#include <utility>

namespace unishard::tools {

MarkedOutput::MarkedOutput(Storage& storage, Path output, std::string mark)
    : storage_(storage), output_(std::move(output)), mark_(std::move(mark)) {
  require_outside_checkpoints(storage_, output_, false);
  require_replaceable();
  made_folders_ = make_durable_directory(storage_, parent_folder(output_));
  lock_.emplace(OutputLock::beside(storage_, output_));
}

MarkedOutput::~MarkedOutput() {
  lock_.reset();
  remove_if_empty(storage_, made_folders_);
}

void MarkedOutput::require_replaceable() const {
  const EntryKind kind = storage_.kind(output_);
  if (kind == EntryKind::Missing) return refuse_dangling_link(output_);
  if (kind == EntryKind::File) {
    const auto file = storage_.open(output_);
    std::string begin(mark_.size(), '\0');
    if (file->size() >= begin.size()) {
      file->read_at(0, std::as_writable_bytes(std::span(begin)));
      if (begin == mark_) return;
    }
  }
  raise(ErrorCode::AlreadyExists,
        fmt::format("{} is there already, and this program did not write it", output_.string()),
        "choose another output; nothing was overwritten");
}

void MarkedOutput::write(std::string_view text) {
  if (lock_) lock_->require_held();
  require_replaceable();
  replace_text(storage_, output_, text);
}

}  // namespace unishard::tools
