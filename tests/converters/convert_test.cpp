#include "unishard/converters/dtype_cast.hpp"
#include "unishard/format/error.hpp"

#include "core/bits.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace unishard::converters {
namespace {

/// Every exponent with mantissas around all rounding borders, both signs; NaN and infinities among
/// them.
std::vector<float> interesting_floats() {
  std::vector<float> values;
  for (std::uint32_t top = 0; top < 0x10000; top += 3) {
    for (const std::uint32_t low : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x7fffu,
                                    0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>(top << 16 | low));
    }
  }
  return values;
}

template <class T, class U>
std::vector<T> converted(DType from, const std::vector<U>& in, DType to) {
  std::vector<T> out(in.size());
  convert_elements(from, std::as_bytes(std::span(in)), to, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(Convert, RoundsToBfloat16AsTheFormatDoes) {
  for (const float value : interesting_floats()) {
    ASSERT_EQ(bits::to_bfloat16(value), round_to_bfloat16(value))
        << std::bit_cast<std::uint32_t>(value);
  }
}

TEST(Convert, RoundsToFloat16AsTheFormatDoes) {
  for (const float value : interesting_floats()) {
    ASSERT_EQ(bits::to_float16(value), round_to_float16(value))
        << std::bit_cast<std::uint32_t>(value);
  }
}

TEST(Convert, WidensEveryHalfExactly) {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    const double exact = float_at(DType::Float16, reinterpret_cast<const std::byte*>(&half));
    const auto wide = static_cast<double>(bits::from_float16(half));
    if (std::isnan(exact)) {
      ASSERT_TRUE(std::isnan(wide)) << i;
    } else {
      ASSERT_EQ(wide, exact) << i;
      ASSERT_EQ(std::signbit(wide), std::signbit(exact)) << i;
      ASSERT_EQ(bits::to_float16(bits::from_float16(half)), half) << i;
    }
  }
}

TEST(Convert, BlocksOfAnyLengthEqualSingleElements) {
  const std::vector<float> in = interesting_floats();
  const auto out = converted<std::uint16_t>(DType::Float32, in, DType::BFloat16);
  for (std::size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], round_to_bfloat16(in[i]));
}

TEST(Convert, DoublesRoundToFloats) {
  const std::vector<double> in = {0.1, -1e300, 1.0 + 0x1p-24, 1.0 + 0x1.8p-23, 5e-324};
  const auto out = converted<float>(DType::Float64, in, DType::Float32);
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_EQ(out[i], static_cast<float>(in[i]));
}

TEST(Convert, IntegersBecomeFloats) {
  EXPECT_EQ(converted<float>(DType::Int64, std::vector<std::int64_t>{-3, 1 << 20}, DType::Float32),
            (std::vector<float>{-3, 1 << 20}));
  EXPECT_EQ(converted<float>(DType::Bool, std::vector<std::uint8_t>{0, 1, 255}, DType::Float32),
            (std::vector<float>{0, 1, 1}));
  EXPECT_EQ(
      converted<double>(DType::UInt64, std::vector<std::uint64_t>{1ull << 53}, DType::Float64),
      (std::vector<double>{0x1p53}));
}

TEST(Convert, RefusesComplexAndIntegerTargets) {
  EXPECT_FALSE(convertible(DType::Complex64, DType::Float32));
  EXPECT_FALSE(convertible(DType::Float32, DType::Int32));
  EXPECT_TRUE(convertible(DType::Int32, DType::Int32));
  EXPECT_THROW(converted<float>(DType::Float32, std::vector<float>{1}, DType::Int32), Error);
}

}  // namespace
}  // namespace unishard::converters
