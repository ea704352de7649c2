#pragma once
// Progress reports and cancellation of long work. The libraries never print: a program turns the
// reports into text.
#include <cstdint>
#include <string_view>

namespace unishard {

/// Receives progress reports. advance() is called from worker threads: implementations must be
/// thread-safe and fast.
class Observer {
 public:
  virtual ~Observer() = default;
  /// Reports that `bytes` more bytes of the total are done. An exception thrown here stops the
  /// work.
  virtual void advance(std::uint64_t bytes) = 0;
  /// Announces work of `total_bytes` bytes, described by `what`.
  virtual void begin(std::string_view what, std::uint64_t total_bytes) = 0;
  virtual void end() = 0;
};

/// Throws what the observer of this thread's work throws when the work is to stop; run_bounded()
/// sets that observer, and elsewhere nothing happens. For loops that may take long within one work
/// item.
void check_stop_request();

/// Returns an observer that ignores every report. It lives until the program ends.
Observer& no_observer();

}  // namespace unishard
