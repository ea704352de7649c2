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

TEST(CompareElements, ComparesIntegersAndComplexNumbers) {
  EXPECT_EQ(compare<std::int64_t>(DType::Int64, {5, 7}, {5, 4}).max_abs, 3.0);
  const ElementDiff diff = compare<float>(DType::Complex64, {1, 2, 3, 4}, {1, 2, 3, 9});
  EXPECT_EQ(diff.elements, 2u);
  EXPECT_EQ(diff.differing, 1u);
  EXPECT_EQ(diff.max_index, 101u);
  EXPECT_EQ(diff.max_abs, 5.0);
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
