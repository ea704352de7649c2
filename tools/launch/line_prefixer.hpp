#pragma once
// Puts a prefix before every line of a stream that comes in arbitrary pieces.
#include <string>
#include <string_view>

namespace unishard::tools {

/// Writes whole lines to a descriptor, so that lines of several ranks do not mix. Bounded memory: a
/// line longer than 64 KiB is passed on in parts. Not thread-safe.
class LinePrefixer {
 public:
  LinePrefixer(std::string prefix, int descriptor)
      : prefix_(std::move(prefix)), descriptor_(descriptor) {}

  void write(std::string_view text);
  /// Passes on a last line that has no newline, and adds one.
  void finish();
  /// The error number of a write that failed, after which output is lost; 0 before.
  int failure() const { return failure_; }
  int descriptor() const { return descriptor_; }

 private:
  void emit(std::string_view line);

  std::string prefix_;
  int descriptor_;
  std::string pending_;
  int failure_ = 0;
};

}  // namespace unishard::tools
