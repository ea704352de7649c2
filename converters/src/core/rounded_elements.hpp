#pragma once
#include "unishard/converters/dtype_cast.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace unishard::converters {

/// Returns whether `rounded` has the elements of `wide` in its type, as 16-bit weights have those
/// of their fp32 masters. Pre: convertible(from, to), and both have the same number of elements.
inline bool are_rounded(DType from, std::span<const std::byte> wide, DType to,
                        std::span<const std::byte> rounded) {
  std::vector<std::byte> expected(rounded.size());
  convert_elements(from, wide, to, expected);
  return std::ranges::equal(expected, rounded);
}

}  // namespace unishard::converters
