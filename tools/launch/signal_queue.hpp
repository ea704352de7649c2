#pragma once
// The signals that the loops of launcher and agent take from a descriptor.
#include "support/descriptor.hpp"

#include <chrono>
#include <csignal>
#include <optional>
#include <vector>

namespace unishard::tools {

/// Blocks SIGCHLD, SIGTERM, SIGINT and SIGHUP and collects them; the destructor restores the old
/// mask. Not thread-safe.
class SignalQueue {
 public:
  /// Throws: Io.
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  /// A descriptor that is readable when a signal has come.
  int descriptor() const { return descriptor_.get(); }
  /// Returns the signals that have come, except SIGCHLD.
  std::vector<int> take();
  /// Waits for a signal other than SIGCHLD; nullopt when none comes in time.
  std::optional<int> wait(std::chrono::milliseconds limit);

 private:
  Descriptor descriptor_;
  sigset_t old_{};
};

}  // namespace unishard::tools
