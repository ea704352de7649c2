#include "unishard/trainer/fold.hpp"

#include "unishard/format/error.hpp"

#include <bit>
#include <cstring>

namespace unishard::trainer {
namespace {

/// The exact value of an IEEE binary16 number, without branches. Multiplication by 2^112 moves the
/// exponent's bias from 15 to 127 and makes subnormal numbers normal; infinities and NaNs keep
/// their exponent.
float widen_float16(std::uint16_t half) {
  const std::uint32_t magnitude = (half & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const std::uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

}  // namespace

void fold_add(std::span<float> accumulator, DType dtype, std::span<const std::byte> values) {
  if (values.size() != accumulator.size() * size_of(dtype)) {
    raise(ErrorCode::Internal, "fold_add: the sizes differ");
  }
  if (dtype == DType::Float32) {
    for (std::size_t i = 0; i < accumulator.size(); ++i) {
      float value = 0;
      std::memcpy(&value, values.data() + i * sizeof value, sizeof value);
      accumulator[i] += value;
    }
  } else if (dtype == DType::BFloat16) {
    for (std::size_t i = 0; i < accumulator.size(); ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, values.data() + i * sizeof bits, sizeof bits);
      accumulator[i] += std::bit_cast<float>(std::uint32_t{bits} << 16);
    }
  } else if (dtype == DType::Float16) {
    for (std::size_t i = 0; i < accumulator.size(); ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, values.data() + i * sizeof bits, sizeof bits);
      accumulator[i] += widen_float16(bits);
    }
  } else {
    raise(ErrorCode::Internal, "fold_add: no rule for " + std::string(name_of(dtype)));
  }
}

}  // namespace unishard::trainer
