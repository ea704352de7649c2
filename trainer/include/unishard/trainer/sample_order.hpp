#pragma once
// The order of the samples as a pure function: a pseudo-random permutation per epoch, computed for
// one index at a time. Nothing of it needs saving but the global sample index. A value; any thread.
#include <cstdint>

namespace unishard::trainer {

class SampleOrder {
 public:
  /// Pre: samples > 0.
  SampleOrder(std::uint64_t samples, std::uint64_t seed) : samples_(samples), seed_(seed) {}

  std::uint64_t epoch(std::uint64_t global_index) const { return global_index / samples_; }
  /// The sample that the run sees as its `global_index`-th.
  std::uint64_t sample(std::uint64_t global_index) const;

 private:
  std::uint64_t samples_;
  std::uint64_t seed_;
};

}  // namespace unishard::trainer
