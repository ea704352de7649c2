#pragma once
// LibTorch's deterministic algorithms, where a run promises equal bits and its device has others.
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

namespace unishard::trainer::detail {

/// While it lives, operations without a deterministic way throw, and new tensors are not filled,
/// which only costs time. The last scope to end restores what the user had before the first: the
/// switches are those of the process. No effect on the CPU, whose operations are deterministic, or
/// if `is_wanted` is false.
class DeterministicScope {
 public:
  DeterministicScope(c10::Device device, bool is_wanted);
  ~DeterministicScope();
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  bool is_active_;
};

/// Throws: Unsupported, naming the operation and the key that allows it, if LibTorch's error says
/// that an operation has no deterministic way.
void require_deterministic(const c10::Error& error);

}  // namespace unishard::trainer::detail
