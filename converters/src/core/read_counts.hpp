#pragma once
#include "unishard/converters/source.hpp"

#include <atomic>
#include <cstdint>

namespace unishard::converters {

/// Counts the bytes that a source returned, by whether a checksum covers them. Thread-safe.
class ReadCounts {
 public:
  void add(bool is_covered, std::uint64_t bytes) { (is_covered ? covered_ : uncovered_) += bytes; }
  InputCheck result(std::uint64_t extra_bytes = 0) const {
    return {covered_, uncovered_, extra_bytes};
  }

 private:
  std::atomic<std::uint64_t> covered_ = 0, uncovered_ = 0;
};

}  // namespace unishard::converters
