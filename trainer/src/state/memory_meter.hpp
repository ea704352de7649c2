#pragma once
// What the units of a model count together.
#include "state/offloaded_parts.hpp"

#include <algorithm>
#include <cstdint>

namespace unishard::trainer::detail {

/// Counts the allocated bytes of flat parameters and their peak. Not thread-safe.
class MemoryMeter {
 public:
  void add(std::int64_t bytes) {
    current_ += bytes;
    peak_ = std::max(peak_, current_);
  }
  void reset_peak() { peak_ = current_; }
  std::int64_t current() const { return current_; }
  std::int64_t peak() const { return peak_; }

  OffloadedParts offloaded;

 private:
  std::int64_t current_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace unishard::trainer::detail
