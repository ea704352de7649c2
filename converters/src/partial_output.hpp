#pragma once
// One result, a file or a folder, that appears by a single rename: `<output>.partial-<32
// hexadecimal digits>` is written, then renamed. The destructor removes what was not published.
#include "unishard/converters/sink.hpp"
#include "unishard/format/storage.hpp"

#include <string>

namespace unishard::converters {

class PartialOutput {
 public:
  enum class Shape : std::uint8_t { File, Folder };
  /// Refuses (AlreadyExists) an existing file or a folder that is not empty; removes what a killed
  /// run of the same output left; makes the parent folder, and the partial folder for Folder.
  /// In all processes but the first it only knows the names.
  PartialOutput(Storage& storage, Path output, Shape shape, const Share& share = {});
  ~PartialOutput();
  PartialOutput(const PartialOutput&) = delete;
  PartialOutput& operator=(const PartialOutput&) = delete;

  const Path& path() const { return partial_; }   ///< write here
  const Path& output() const { return output_; }  ///< what it will be called
  /// Everything below path() must be synced. Syncs the folder itself, renames, syncs the parent.
  void publish();

 private:
  Storage& storage_;
  Path output_;
  Path partial_;
  const Shape shape_;
  const bool is_owner_;
  bool published_ = false;
};

}  // namespace unishard::converters
