#pragma once
// Measures by a device's own events what its streams do, so that nobody waits for the device.
#include "unishard/trainer/runtime.hpp"
#include "unishard/trainer/trace.hpp"

#include <c10/core/Event.h>

#include <string>
#include <string_view>
#include <vector>

namespace unishard::trainer::detail {

/// Not thread-safe.
class DeviceTrace {
 public:
  /// Waits for the stream, whose time and the host's are compared then.
  /// Lifetime: `trace` must outlive this object.
  DeviceTrace(Trace& trace, c10::Stream stream);
  /// Completes the trace.
  ~DeviceTrace();
  DeviceTrace(const DeviceTrace&) = delete;
  DeviceTrace& operator=(const DeviceTrace&) = delete;

  /// Returns the trace that gets the pieces.
  Trace& trace() const { return trace_; }
  /// Begins a piece of work of `stream` and returns its number.
  std::size_t begin(std::string_view stream, std::string name, c10::Stream where);
  void end(std::size_t number, c10::Stream where);
  /// Waits for the pieces that have ended, and adds them.
  void complete() { add_ended(/*waits=*/true); }

 private:
  struct Piece {
    std::string_view stream;
    std::string name;
    c10::Event begin, end;
    bool has_ended = false;
  };
  /// Adds pieces in the order of begin(), up to the first that has not ended or, unless it `waits`,
  /// is not done.
  void add_ended(bool waits);

  Trace& trace_;
  c10::Event zero_;
  Trace::Clock::time_point zero_time_;
  std::size_t added_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace unishard::trainer::detail
