#pragma once
// A text file that replaces only what this program has written before, which begins with a mark.
#include "unishard/format/output_lock.hpp"
#include "unishard/format/storage.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::tools {

/// Not thread-safe.
class MarkedOutput {
 public:
  /// Creates the parent folder and locks `output` for the life of this object.
  /// Lifetime: `storage` must outlive this object.
  /// Throws: InvalidArgument inside a checkpoint's folder; AlreadyExists when `output` exists and
  /// does not begin with `mark`; Busy when another process is writing it.
  MarkedOutput(Storage& storage, Path output, std::string mark);
  /// Removes the folders that were created, when nothing was written.
  ~MarkedOutput();
  MarkedOutput(const MarkedOutput&) = delete;
  MarkedOutput& operator=(const MarkedOutput&) = delete;

  /// Writes `text` beside the output and renames it.
  /// Pre: `text` begins with the mark.
  /// Throws: as the constructor, for what has come there meanwhile.
  void write(std::string_view text);

 private:
  void require_replaceable() const;

  Storage& storage_;
  const Path output_;
  const std::string mark_;
  std::vector<Path> made_folders_;  // deepest first
  std::optional<OutputLock> lock_;
};

}  // namespace unishard::tools
