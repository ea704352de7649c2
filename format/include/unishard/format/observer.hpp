#pragma once
// How long work reports progress and can be stopped. Libraries never print: tools decide what
// becomes text. Called from worker threads, so implementations must be thread-safe and quick.
#include <cstdint>
#include <string_view>

namespace unishard {

class Observer {
 public:
  virtual ~Observer() = default;
  /// `bytes` more are done, of the total that begin() announced.
  virtual void advance(std::uint64_t bytes) = 0;
  virtual void begin(std::string_view what, std::uint64_t total_bytes) = 0;
  virtual void end() = 0;
};

/// An observer that ignores everything.
Observer& no_observer();

}  // namespace unishard
