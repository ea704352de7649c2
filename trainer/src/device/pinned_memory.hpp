#pragma once
// Host memory that a device can read and write by itself. cuda_pinned_memory.cpp implements it with
// the CUDA toolkit, no_cuda_pinned_memory.cpp without.
#include <c10/core/Device.h>

#include <cstddef>
#include <span>
#include <string>

namespace unishard::trainer::detail {

/// Pins host memory for copies from `device` as long as it lives. If pinning fails, copies into the
/// memory are slower, and the first failure of the process prints a warning that says why.
/// `device` is made the current one meanwhile, because CUDA opens a context on the current device,
/// and a context takes some hundred megabytes of a device's memory.
/// Lifetime: the memory must outlive this object.
class PinnedMemory {
 public:
  PinnedMemory(std::span<std::byte> memory, c10::Device device);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  /// Returns why the memory is not pinned; empty if it is.
  const std::string& problem() const { return problem_; }

 private:
  [[maybe_unused]] c10::Device device_;
  void* pinned_ = nullptr;
  std::string problem_;
};

}  // namespace unishard::trainer::detail
