#pragma once
// Health figures of a run of elements, taken while bytes pass by. NaN and Inf are counted and left
// out of min, max and sum. Integers, bool and complex numbers are not measured (count stays 0).
// Pure; any thread.
#include "unishard/format/dtype.hpp"

#include <cstdint>
#include <span>

namespace unishard {

struct Stats {
  std::uint64_t count = 0;  ///< elements measured, NaN and Inf included
  std::uint64_t nan_count = 0;
  std::uint64_t inf_count = 0;
  double min = 0;  ///< of the finite elements; 0 when there is none
  double max = 0;
  double sum_squares = 0;  ///< of the finite elements; the L2 norm is its square root

  std::uint64_t finite_count() const { return count - nan_count - inf_count; }
  /// Folds `next`, which must follow this run: the sum's rounding depends on the order.
  void append(const Stats& next);
  bool operator==(const Stats&) const = default;
};

/// Pre: bytes.size() is a multiple of size_of(dtype).
Stats measure(DType dtype, std::span<const std::byte> bytes);

}  // namespace unishard
