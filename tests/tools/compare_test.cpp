#include "workflows/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace unishard::tools {
namespace {

template <class T>
ElementDiff compare(DType dtype, const std::vector<T>& a, const std::vector<T>& b,
                    std::optional<double> tolerance = {}) {
  return compare_elements(dtype, std::as_bytes(std::span(a)), std::as_bytes(std::span(b)), 100,
                          tolerance);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(CompareElements, FindsTheLargestDifference) {
  std::vector<float> a(2000, 1.0f);
  std::vector<float> b = a;
  b[3] = 1.5f;
  b[1999] = -2.0f;
  const ElementDiff diff = compare(DType::Float32, a, b);
  EXPECT_EQ(diff.elements, 2000u);
  EXPECT_EQ(diff.differing, 2u);
  EXPECT_EQ(diff.beyond, 2u);
  EXPECT_EQ(diff.max_abs, 3.0);
  EXPECT_EQ(diff.max_index, 2099u);
  EXPECT_EQ(diff.a, 1.0);
  EXPECT_EQ(diff.b, -2.0);
}

TEST(CompareElements, EveryBitCountsWithoutATolerance) {
  EXPECT_EQ(compare<float>(DType::Float32, {0.0f}, {-0.0f}).beyond, 1u);
  EXPECT_EQ(compare<float>(DType::Float32, {0.0f}, {-0.0f}, 0.0).beyond, 0u);
  EXPECT_EQ(compare<float>(DType::Float32, {kNan}, {kNan}).differing, 0u);
}

TEST(CompareElements, NanAgainstANumberIsInfinitelyFar) {
  const ElementDiff diff = compare<float>(DType::Float32, {kNan, 1}, {2, 1}, 1e9);
  EXPECT_EQ(diff.beyond, 1u);
  EXPECT_TRUE(std::isinf(diff.max_abs));
  EXPECT_EQ(compare<float>(DType::Float32, {kNan}, {-kNan}, 0.0).beyond, 0u);
}

TEST(CompareElements, IntegersBeyondDoublesHaveTheirDistance) {
  const std::int64_t large = std::int64_t{1} << 62;
  EXPECT_EQ(compare<std::int64_t>(DType::Int64, {large + 1}, {large}, 0.5).beyond, 1u);
  EXPECT_EQ(compare<std::int64_t>(DType::Int64, {-large - 2}, {large}).max_abs, 0x1p63);
  EXPECT_EQ(compare<std::uint64_t>(DType::UInt64, {~0ull}, {~0ull - 3}, 3.0).beyond, 0u);
}

TEST(CompareElements, ComparesIntegersAndComplexNumbers) {
  EXPECT_EQ(compare<std::int64_t>(DType::Int64, {5, 7}, {5, 4}).max_abs, 3.0);
  const ElementDiff diff = compare<float>(DType::Complex64, {1, 2, 3, 4}, {1, 2, 3, 9});
  EXPECT_EQ(diff.elements, 2u);
  EXPECT_EQ(diff.differing, 1u);
  EXPECT_EQ(diff.max_index, 101u);
  EXPECT_EQ(diff.max_abs, 5.0);
}

TEST(CompareWidened, ValuesCountWhateverTheirTypes) {
  const auto widened = [](const std::vector<std::uint16_t>& bf16, const std::vector<float>& fp32,
                          std::optional<double> tolerance = {}) {
    return compare_widened(DType::BFloat16, std::as_bytes(std::span(bf16)), DType::Float32,
                           std::as_bytes(std::span(fp32)), 100, tolerance);
  };
  constexpr std::uint16_t kOne = 0x3f80, kMinusZero = 0x8000, kBf16Nan = 0x7fc0, kInf = 0x7f80;
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(widened({kOne, kMinusZero, kBf16Nan, kInf}, {1, 0, kNan, inf}).differing, 0u);
  const float near_one = std::nextafter(1.0f, 2.0f);
  const ElementDiff diff = widened({kOne, kOne, kOne}, {1, near_one, 1});
  EXPECT_EQ(diff.elements, 3u);
  EXPECT_EQ(diff.beyond, 1u);
  EXPECT_EQ(diff.max_index, 101u);
  EXPECT_EQ(diff.max_abs, double{near_one} - 1);
  EXPECT_EQ(widened({kOne}, {near_one}, 1e-3).beyond, 0u);
  EXPECT_TRUE(std::isinf(widened({kBf16Nan}, {1}).max_abs));
  const std::vector<std::uint16_t> many(3000, kOne);
  std::vector<float> last(3000, 1.0f);
  last.back() = 3;
  EXPECT_EQ(widened(many, last).max_index, 3099u);
}

TEST(ElementDiff, AppendsInAnyOrder) {
  const ElementDiff first = compare<float>(DType::Float32, {1}, {2});
  const ElementDiff second = compare<float>(DType::Float32, {1}, {5});
  ElementDiff a = first;
  a.append(second);
  ElementDiff b = second;
  b.append(first);
  EXPECT_EQ(a.max_abs, 4.0);
  EXPECT_EQ(b.max_abs, 4.0);
  EXPECT_EQ(a.differing, 2u);
}

}  // namespace
}  // namespace unishard::tools
