#include "unishard/format/stats.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace unishard {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

Stats of(const std::vector<float>& values) {
  return measure(DType::Float32, std::as_bytes(std::span(values)));
}

TEST(Stats, CountsNanAndInfAndLeavesThemOut) {
  const Stats stats = of({1, kNan, -3, kInf, -kInf, 2, -kNan});
  EXPECT_EQ(stats.count, 7u);
  EXPECT_EQ(stats.nan_count, 2u);
  EXPECT_EQ(stats.inf_count, 2u);
  EXPECT_EQ(stats.min, -3);
  EXPECT_EQ(stats.max, 2);
  EXPECT_EQ(stats.sum_squares, 14);
}

TEST(Stats, HasZeroBoundsWithoutFiniteElements) {
  EXPECT_EQ(of({kNan, kInf}).min, 0);
  EXPECT_EQ(of({}), Stats{});
}

TEST(Stats, IntegersAreNotMeasured) {
  const std::vector<std::int64_t> values{1, 2};
  EXPECT_EQ(measure(DType::Int64, std::as_bytes(std::span(values))).count, 0u);
}

TEST(Stats, MeasuresEveryFloatKind) {
  const std::vector<double> wide{1.5, -2.5};
  EXPECT_EQ(measure(DType::Float64, std::as_bytes(std::span(wide))).sum_squares, 8.5);
  const std::vector<std::uint16_t> half{0x3c00, 0xc000};
  EXPECT_EQ(measure(DType::Float16, std::as_bytes(std::span(half))).min, -2);
  const std::vector<std::uint16_t> brain{0x3f80, 0xc000, 0x7fc0};
  const Stats stats = measure(DType::BFloat16, std::as_bytes(std::span(brain)));
  EXPECT_EQ(stats.min, -2);
  EXPECT_EQ(stats.nan_count, 1u);
}

RC_GTEST_PROP(Stats, AppendingPartsCountsLikeTheWhole,
              (std::vector<float> a, std::vector<float> b)) {
  Stats parts = of(a);
  parts.append(of(b));
  a.insert(a.end(), b.begin(), b.end());
  const Stats whole = of(a);
  RC_ASSERT(parts.count == whole.count && parts.nan_count == whole.nan_count &&
            parts.inf_count == whole.inf_count);
  RC_ASSERT(parts.min == whole.min && parts.max == whole.max);
  RC_ASSERT(std::fabs(parts.sum_squares - whole.sum_squares) <= 1e-9 * whole.sum_squares);
}

}  // namespace
}  // namespace unishard
