#include "unishard/trainer/batch_plan.hpp"

#include "unishard/format/error.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace unishard::trainer {
namespace {

using Number = std::optional<std::int64_t>;

struct Row {
  Number train, micro, accumulation;
  std::uint32_t world;
  BatchPlan expected;
};

TEST(BatchPlan, FollowsDeepSpeedsTable) {
  const Row rows[] = {
      {32, 4, 2, 4, {32, 4, 2, 8}},   {32, 4, {}, 4, {32, 4, 2, 8}},  {32, {}, 2, 4, {32, 4, 2, 8}},
      {{}, 4, 2, 4, {32, 4, 2, 8}},   {32, {}, {}, 4, {32, 8, 1, 4}}, {{}, 4, {}, 4, {16, 4, 1, 4}},
      {12, 1, {}, 5, {12, 1, 3, 12}},  // padded: 15 slots for 12 micro-batches
      {3, 1, {}, 4, {3, 1, 1, 3}},
  };
  for (const Row& row : rows) {
    const BatchPlan plan = plan_batch({row.train, row.micro, row.accumulation}, row.world);
    EXPECT_EQ(plan, row.expected) << plan.train << " " << plan.micro << " " << plan.accumulation;
    EXPECT_GE(plan.padding(row.world), 0);
    EXPECT_LT(plan.padding(row.world), static_cast<std::int64_t>(row.world));
  }
}

TEST(BatchPlan, RefusesWhatDoesNotWorkOut) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kBig = std::int64_t{1} << 31;  // 4 * kBig * kBig is 2^64
  const Row rows[] = {
      {{}, {}, {}, 1, {}},          {{}, {}, 4, 1, {}},     {33, 4, 2, 4, {}},
      {33, {}, {}, 4, {}},          {10, 4, {}, 1, {}},     {0, 1, {}, 1, {}},
      {8, -1, {}, 1, {}},           {2, {}, {}, 4, {}},     {kHuge, 1, {}, 1, {}},
      {kHuge, kHuge, {}, 1, {}},    {{}, kHuge, {}, 1, {}}, {{}, kBig, kBig, 4, {}},
      {{}, kBig, {}, 4, {}},        {{}, 1, kBig, 4, {}},   {0, kBig, kBig, 4, {}},
      {1 << 20, kBig, kBig, 4, {}},
  };
  for (const Row& row : rows) {
    EXPECT_THROW(plan_batch({row.train, row.micro, row.accumulation}, row.world), Error);
  }
}

}  // namespace
}  // namespace unishard::trainer
