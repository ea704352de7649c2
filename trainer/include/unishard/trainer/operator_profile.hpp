#pragma once
// What LibTorch's own profiler sees: operators of the host, and kernels and copies of a device.
#include "unishard/format/json.hpp"

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::trainer {

/// One operator of the host, or one kernel or copy of a device.
struct ProfiledWork {
  std::string name;
  std::string lane;  ///< "thread 1", or the device and its stream: "cuda:0 stream 7"
  bool on_device = false;
  double begin = 0;     ///< microseconds of Unix time
  double duration = 0;  ///< microseconds; operators that it called are included
};

/// Records from its construction to stop() what the constructing thread does, with the backward
/// passes that it runs. There is one at a time in a process.
/// Thread safety: the constructing thread calls all functions.
class OperatorProfile {
 public:
  /// Records the kernels of `device` too, unless it is the host.
  explicit OperatorProfile(c10::Device device);
  /// Forgets what was recorded, unless stop() was called.
  ~OperatorProfile();
  OperatorProfile(const OperatorProfile&) = delete;
  OperatorProfile& operator=(const OperatorProfile&) = delete;

  /// Returns the work in the order of its beginning. Pre: it was not called before, and the device
  /// has done its work.
  std::vector<ProfiledWork> stop();

 private:
  bool is_recording_ = true;
};

/// Returns Chrome's complete events ("ph": "X"), as Trace::to_json() does; `process` numbers the
/// rank.
Json profile_events(const std::vector<ProfiledWork>& work, std::uint32_t process);

/// Returns a table for people: the time of each kernel, and the time of each operator without those
/// that it called, per step of `steps`, the longest first. Pre: `work` is in the order of
/// beginning.
std::string profile_summary(const std::vector<ProfiledWork>& work, std::int64_t steps);

}  // namespace unishard::trainer
