#pragma once
// The runtime of an engine on a guarded device: a CUDA device's, but for the update.
#include "unishard/trainer/runtime.hpp"

#include <memory>
#include <optional>

namespace unishard::test {

struct GuardedRuntimeOptions {
  /// Ranks that are threads of one process need a device each: a device has one autograd thread,
  /// and ranks wait for each other in it.
  int device = 0;
  /// Waits of this stream are left out: an error that the device must find.
  std::optional<trainer::Stream> deaf = {};
  /// Waits for this stream are left out: another such error.
  std::optional<trainer::Stream> mute = {};
  /// Needs LibTorch 2.4 or later.
  trainer::Trace* trace = nullptr;
};

/// Installs the guarded devices. Stream Compute is the device's default stream.
std::unique_ptr<trainer::Runtime> make_guarded_runtime(GuardedRuntimeOptions options = {});

}  // namespace unishard::test
