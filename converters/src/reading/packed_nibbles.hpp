#pragma once
// Weights of 4-bit numbers, two in a byte, that stand for the values of a table, times a scale that
// a block of elements shares. bitsandbytes writes them; blocks run through the elements in
// row-major order, and the upper half of a byte is its first number.
#include "reading/quantized_weight.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace unishard::converters {

using NibbleTable = std::array<float, 16>;

/// Values of bitsandbytes.functional.get_4bit_type("nf4"): quantiles of the normal distribution.
inline constexpr NibbleTable kNf4 = {-1.0F,
                                     -0.6961928009986877F,
                                     -0.5250730514526367F,
                                     -0.39491748809814453F,
                                     -0.28444138169288635F,
                                     -0.18477343022823334F,
                                     -0.09105003625154495F,
                                     0.0F,
                                     0.07958029955625534F,
                                     0.16093020141124725F,
                                     0.24611230194568634F,
                                     0.33791524171829224F,
                                     0.44070982933044434F,
                                     0.5626170039176941F,
                                     0.7229568362236023F,
                                     1.0F};

/// Values of get_4bit_type("fp4"): a sign, two bits of exponent and one of mantissa, of which the
/// largest is 1. There is no negative zero.
inline constexpr NibbleTable kFp4 = {
    0.0F, 0.0625F / 12,  8.0F / 12,  12.0F / 12,  4.0F / 12,  6.0F / 12,  2.0F / 12,  3.0F / 12,
    0.0F, -0.0625F / 12, -8.0F / 12, -12.0F / 12, -4.0F / 12, -6.0F / 12, -2.0F / 12, -3.0F / 12};

/// Scales that are numbers of 8 bits: scale = table[number] * scale of its block + offset.
struct NestedScales {
  std::array<float, 256> table;
  std::size_t scales = 0;  ///< tensor of the source
  std::uint64_t block = 1;
  float offset = 0;
};

struct PackedNibbles {
  std::size_t numbers = 0, scales = 0;  ///< tensors of the source
  std::uint64_t block = 1;
  NibbleTable table;
  std::optional<NestedScales> nested;
};

/// Pre: the tensors have as many elements as the weight needs.
std::shared_ptr<const QuantizedValues> make_packed_nibbles(PackedNibbles nibbles);

}  // namespace unishard::converters
