#pragma once
// Counts the bytes of flat parameters that have memory, and the most there ever were.
#include <algorithm>
#include <cstdint>

namespace unishard::trainer::detail {

class MemoryMeter {
 public:
  void add(std::int64_t bytes) {
    current_ += bytes;
    peak_ = std::max(peak_, current_);
  }
  void reset_peak() { peak_ = current_; }
  std::int64_t current() const { return current_; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t current_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace unishard::trainer::detail
