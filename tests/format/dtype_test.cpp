#include "unishard/format/dtype.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace unishard {
namespace {

double widen(DType dtype, std::uint16_t bits) {
  return float_at(dtype, reinterpret_cast<const std::byte*>(&bits));
}

TEST(DType, TableIsInEnumeratorOrderAndNamesAreUnique) {
  for (std::size_t i = 0; i < dtype_table().size(); ++i) {
    const auto& row = dtype_table()[i];
    EXPECT_EQ(static_cast<std::size_t>(row.dtype), i);
    EXPECT_EQ(dtype_from_name(row.name), row.dtype);
    EXPECT_EQ(dtype_from_safetensors(row.safetensors_name), row.dtype);
  }
  EXPECT_EQ(dtype_from_name("float31"), std::nullopt);
  EXPECT_EQ(dtype_from_safetensors("f32"), std::nullopt);
}

TEST(DType, WidensSpecialValuesOfSmallFloats) {
  EXPECT_EQ(widen(DType::Float16, 0x3c00), 1.0);
  EXPECT_EQ(widen(DType::Float16, 0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(widen(DType::Float16, 0xfc00), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(widen(DType::Float16, 0x7e00)));
  EXPECT_EQ(widen(DType::BFloat16, 0x4049), 3.140625);
  EXPECT_EQ(widen(DType::Float8E4M3, 0x7e), 448.0);
  EXPECT_TRUE(std::isnan(widen(DType::Float8E4M3, 0x7f)));
  EXPECT_EQ(widen(DType::Float8E5M2, 0x7b), 57344.0);
  EXPECT_TRUE(std::isinf(widen(DType::Float8E5M2, 0x7c)));
}

TEST(RoundToBfloat16, RoundsHalfToEvenAndKeepsNaN) {
  EXPECT_EQ(round_to_bfloat16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // half, even below
  EXPECT_EQ(round_to_bfloat16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // half, even above
  EXPECT_EQ(round_to_bfloat16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(round_to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(round_to_bfloat16(std::bit_cast<float>(0x7f800001u)) & 0x7fffu, 0x7fc0u);
}

// The definition: the nearest representable value, ties to the even bit pattern.
void check_nearest(DType dtype, float value, std::uint16_t got) {
  const double target = static_cast<double>(value);
  const double best = std::fabs(widen(dtype, got) - target);
  for (const int step : {-1, 1}) {
    const auto other = static_cast<std::uint16_t>(got + step);
    const double neighbour = widen(dtype, other);
    if (!std::isfinite(neighbour)) continue;
    const double distance = std::fabs(neighbour - target);
    RC_ASSERT(distance > best || (distance == best && (got & 1u) == 0) ||
              (distance == best && neighbour == widen(dtype, got)));
  }
}

RC_GTEST_PROP(RoundToFloat16, IsNearestEven, ()) {
  const auto bits = *rc::gen::inRange<std::uint32_t>(0x33000000u, 0x477fe000u);
  const float value = std::bit_cast<float>(bits);
  check_nearest(DType::Float16, value, round_to_float16(value));
}

RC_GTEST_PROP(RoundToBfloat16, IsNearestEven, ()) {
  const auto bits = *rc::gen::inRange<std::uint32_t>(0x00000000u, 0x7f000000u);
  const float value = std::bit_cast<float>(bits);
  check_nearest(DType::BFloat16, value, round_to_bfloat16(value));
}

TEST(RoundToFloat16, ReproducesEveryHalf) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const double value = widen(DType::Float16, half);
    if (std::isnan(value)) continue;
    ASSERT_EQ(round_to_float16(static_cast<float>(value)), half) << std::hex << bits;
  }
  EXPECT_EQ(round_to_float16(65520.0f), 0x7c00);
  EXPECT_EQ(round_to_float16(65519.0f), 0x7bff);
}

}  // namespace
}  // namespace unishard
