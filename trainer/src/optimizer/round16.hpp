#pragma once
// round_to_bfloat16() and round_to_float16() of format, for one element on host and device, without
// branches, so that the compiler vectorises them.
#include "optimizer/host_device.hpp"

#include <cstdint>

namespace unishard::trainer::detail {

struct ToBFloat16 {
  UNISHARD_HOST_DEVICE std::uint16_t operator()(float value) const {
    const auto bits = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
    const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
    return static_cast<std::uint16_t>((nan ? (bits | 0x400000U) : rounded) >> 16);
  }
};

struct ToFloat16 {
  UNISHARD_HOST_DEVICE std::uint16_t operator()(float value) const {
    const auto bits = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    const std::uint32_t normal =
        (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    // The float adder rounds a subnormal at the right bit.
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5F;
    const std::uint32_t subnormal = __builtin_bit_cast(std::uint32_t, shifted) - 0x3f000000U;
    const std::uint32_t nan = 0x7e00U | ((magnitude >> 13) & 0x1ffU);
    std::uint32_t result = magnitude < 0x38800000U ? subnormal : normal;
    result = magnitude >= 0x477ff000U ? 0x7c00U : result;  // rounds to infinity
    result = magnitude > 0x7f800000U ? nan : result;
    return static_cast<std::uint16_t>(((bits >> 16) & 0x8000U) | result);
  }
};

}  // namespace unishard::trainer::detail
