#pragma once
// A result, one file or one folder, that appears by a single rename: it is written as
// `<output>.partial-<32 hexadecimal digits>`, then renamed. The destructor removes what was not
// published.
#include "unishard/converters/sink.hpp"
#include "unishard/format/output_lock.hpp"
#include "unishard/format/storage.hpp"

#include <optional>
#include <string>

namespace unishard::converters {

/// Not thread-safe.
class PartialOutput {
 public:
  enum class Shape : std::uint8_t { File, Folder };
  /// Creates the parent folder (and removes it again where nothing is published), locks `output`
  /// for the life of this object, removes what dead writers of the same output left, and creates
  /// the partial folder for Shape::Folder. A link to a folder stands for that folder. Processes
  /// other than share.rank 0 only learn the names. Lifetime: `storage` must outlive this object.
  /// Throws: AlreadyExists for an existing file, a folder that is not empty or a dangling link;
  /// Busy, naming the other writer, when another process is writing the same output.
  PartialOutput(Storage& storage, const Path& output, Shape shape, const WorkSplit& share = {});
  ~PartialOutput();
  PartialOutput(const PartialOutput&) = delete;
  PartialOutput& operator=(const PartialOutput&) = delete;

  const Path& path() const { return partial_; }   ///< write here
  const Path& output() const { return output_; }  ///< the final name
  /// Makes the names in and below a partial folder durable.
  /// Pre: all files are synced.
  void sync();
  /// Renames the result and syncs the parent folder.
  /// Pre: everything below path() is durable.
  /// Throws: AlreadyExists when the name exists by now, which then stays unchanged; Busy when the
  /// lock was lost.
  void publish();

 private:
  Storage& storage_;
  const Path output_;
  const Path partial_;
  const Shape shape_;
  const bool is_owner_;
  std::vector<Path> made_folders_;  // by the constructor, deepest first
  std::optional<OutputLock> lock_;
  bool published_ = false;
};

}  // namespace unishard::converters
