#pragma once
// One result, a file or a folder, that appears by a single rename: `<output>.partial-<32
// hexadecimal digits>` is written, then renamed. The destructor removes what was not published.
#include "unishard/converters/sink.hpp"
#include "unishard/format/output_lock.hpp"
#include "unishard/format/storage.hpp"

#include <optional>
#include <string>

namespace unishard::converters {

class PartialOutput {
 public:
  enum class Shape : std::uint8_t { File, Folder };
  /// Makes the parent folder, locks `output` for its life, removes what dead writers of the same
  /// output left, and makes the partial folder for Folder. A link to a folder stands for that
  /// folder. In all processes but the first it only knows the names.
  /// Throws: AlreadyExists for an existing file, a folder that is not empty or a dangling link;
  /// Busy, naming the other writer, when another process is writing the same output.
  PartialOutput(Storage& storage, const Path& output, Shape shape, const WorkSplit& share = {});
  ~PartialOutput();
  PartialOutput(const PartialOutput&) = delete;
  PartialOutput& operator=(const PartialOutput&) = delete;

  const Path& path() const { return partial_; }   ///< write here
  const Path& output() const { return output_; }  ///< what it will be called
  /// Makes the names in a partial folder and below it durable. Pre: all files are synced.
  void sync();
  /// Renames, syncs the parent. Pre: everything below path() is durable. Throws AlreadyExists when
  /// something has the name by now, which then stays as it is; Busy when the lock was lost.
  void publish();

 private:
  Storage& storage_;
  const Path output_;
  const Path partial_;
  const Shape shape_;
  const bool is_owner_;
  std::optional<OutputLock> lock_;
  bool published_ = false;
};

}  // namespace unishard::converters
