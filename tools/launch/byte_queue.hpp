#pragma once
#include "support/descriptor.hpp"

#include <string>
#include <string_view>

namespace unishard::tools {

/// Bytes on their way into a descriptor that is written without waiting. Not thread-safe.
class ByteQueue {
 public:
  /// Takes the descriptor over and makes its writes return at once.
  explicit ByteQueue(Descriptor descriptor);

  /// Appends bytes, and writes what can be written. After a failure, bytes are dropped.
  void push(std::string_view bytes);
  /// Writes what can be written.
  void flush();
  int descriptor() const { return descriptor_.get(); }
  std::size_t size() const { return bytes_.size(); }
  /// Returns true once a write has failed: nobody reads any more.
  bool has_failed() const { return has_failed_; }
  void close() { descriptor_.close(); }

 private:
  Descriptor descriptor_;
  std::string bytes_;
  bool has_failed_ = false;
};

}  // namespace unishard::tools
