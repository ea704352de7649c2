#pragma once
// Statistics of a sequence of elements, computed while the bytes pass. NaN and infinity are
// counted, but excluded from min, max and sum. Integers, bool and complex numbers are not measured:
// `count` stays 0.
// Thread safety: values and pure functions.
#include "unishard/format/dtype.hpp"

#include <cstdint>
#include <span>

namespace unishard {

struct Stats {
  std::uint64_t count = 0;  ///< elements measured, including NaN and infinity
  std::uint64_t nan_count = 0;
  std::uint64_t inf_count = 0;
  double min = 0;          ///< smallest finite element; 0 when there is none
  double max = 0;          ///< largest finite element; 0 when there is none
  double sum_squares = 0;  ///< over finite elements; the L2 norm is its square root

  std::uint64_t finite_count() const { return count - nan_count - inf_count; }
  /// Adds the statistics of the elements that follow these.
  /// Pre: `next` follows directly, because the rounding of the sum depends on the order.
  void append(const Stats& next);
  bool operator==(const Stats&) const = default;
};

/// Returns the statistics of `bytes`. Equal bytes give equal bits on every machine.
/// Pre: bytes.size() is a multiple of size_of(dtype).
Stats measure(DType dtype, std::span<const std::byte> bytes);

}  // namespace unishard
