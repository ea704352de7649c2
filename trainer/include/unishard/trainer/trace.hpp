#pragma once
// What each stream did and when, in the format of Chrome's trace viewer (also Perfetto).
#include "unishard/format/json.hpp"

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::trainer {

/// Thread-safe.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  /// One piece of work of a stream; times are microseconds since the trace was constructed.
  struct Span {
    std::string stream;
    std::string name;
    double begin = 0;
    double end = 0;
  };

  void add(std::string_view stream, std::string_view name, Clock::time_point begin,
           Clock::time_point end);
  /// Returns the spans so far, in the order of add().
  std::vector<Span> spans() const;
  /// Forgets the spans so far.
  void clear();
  /// Returns the spans from number `first` on as Chrome's "traceEvents"; `process` numbers the
  /// rank. Times are microseconds of Unix time, which all ranks have in common as far as their
  /// machines' clocks agree. Source: "Trace Event Format", complete events ("ph": "X").
  Json events(std::uint32_t process, std::size_t first = 0) const;

 private:
  const Clock::time_point start_ = Clock::now();
  const std::chrono::system_clock::time_point unix_start_ = std::chrono::system_clock::now();
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
};

/// Adds a span from its construction to its destruction; a null trace adds nothing.
class TraceScope {
 public:
  TraceScope(Trace* trace, std::string_view stream, std::string name)
      : trace_(trace), stream_(stream), name_(std::move(name)), begin_(Trace::Clock::now()) {}
  ~TraceScope() {
    if (trace_) trace_->add(stream_, name_, begin_, Trace::Clock::now());
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace* trace_;
  std::string_view stream_;
  std::string name_;
  Trace::Clock::time_point begin_;
};

}  // namespace unishard::trainer
