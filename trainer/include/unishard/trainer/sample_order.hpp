#pragma once
// The order of the samples as a pure function: a pseudo-random permutation per epoch, computed one
// index at a time. A checkpoint needs to store only the global sample index.
#include <cstdint>

namespace unishard::trainer {

/// Thread safety: an immutable value.
class SampleOrder {
 public:
  /// Pre: samples > 0.
  SampleOrder(std::uint64_t samples, std::uint64_t seed) : samples_(samples), seed_(seed) {}

  std::uint64_t epoch(std::uint64_t global_index) const { return global_index / samples_; }
  /// Returns the sample at position `global_index` of the run.
  std::uint64_t sample(std::uint64_t global_index) const;

 private:
  std::uint64_t samples_;
  std::uint64_t seed_;
};

}  // namespace unishard::trainer
