#pragma once
// Float conversions on bit patterns, without branches so that loops over them vectorise. Round to
// nearest, ties to even.
#include <bit>
#include <cstdint>

namespace unishard::converters::bits {

inline float from_bfloat16(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

inline std::uint16_t to_bfloat16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (u >> 16) | 0x40u;
  return static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

inline float from_float16(std::uint16_t value) {
  constexpr std::uint32_t kExponent = 0x7c00u << 13;
  const std::uint32_t magnitude = (value & 0x7fffu) << 13;
  const std::uint32_t exponent = magnitude & kExponent;
  const std::uint32_t normal = magnitude + (112u << 23);
  const std::uint32_t infinite = normal + (112u << 23);
  // A subnormal is its mantissa on top of 2^-14, minus 2^-14.
  const float subnormal =
      std::bit_cast<float>(normal + (1u << 23)) - std::bit_cast<float>(113u << 23);
  std::uint32_t u = exponent == kExponent ? infinite : normal;
  u = exponent == 0 ? std::bit_cast<std::uint32_t>(subnormal) : u;
  return std::bit_cast<float>(u | (static_cast<std::uint32_t>(value & 0x8000u) << 16));
}

inline std::uint16_t to_float16(float value) {
  const auto all = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t u = all & 0x7fffffffu;
  const std::uint32_t normal = (u - (112u << 23) + 0xfffu + ((u >> 13) & 1u)) >> 13;
  // Adding 0.5 moves the bits of a float16 subnormal to the end of the mantissa, and rounds them.
  constexpr std::uint32_t kHalf = 126u << 23;
  const float shifted = std::bit_cast<float>(u) + std::bit_cast<float>(kHalf);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - kHalf;
  const std::uint32_t nan = 0x7e00u | ((u >> 13) & 0x3ffu);
  std::uint32_t half = u < (113u << 23) ? subnormal : normal;
  half = u >= (143u << 23) ? 0x7c00u : half;
  half = u > 0x7f800000u ? nan : half;
  return static_cast<std::uint16_t>(half | ((all >> 16) & 0x8000u));
}

}  // namespace unishard::converters::bits
