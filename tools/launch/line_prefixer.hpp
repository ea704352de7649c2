#pragma once
#include <string>
#include <string_view>

namespace unishard::tools {

/// Writes a prefix before every line of a stream that arrives in arbitrary pieces. Writes whole
/// lines to the descriptor, so that lines of several ranks do not mix; a line longer than 64 KiB is
/// written in parts, which bounds the memory. Not thread-safe.
class LinePrefixer {
 public:
  LinePrefixer(std::string prefix, int descriptor)
      : prefix_(std::move(prefix)), descriptor_(descriptor) {}

  void write(std::string_view text);
  /// Writes a last line that has no newline, and adds one.
  void finish();
  /// Returns the error number of the first failed write, after which output is lost; 0 before.
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
