#include "unishard/trainer/operator_profile.hpp"

#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace unishard::test {
namespace {

using namespace unishard::trainer;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

std::size_t count_of(const std::vector<ProfiledWork>& work, const std::string& name) {
  return static_cast<std::size_t>(std::ranges::count(work, name, &ProfiledWork::name));
}

TEST(OperatorProfile, HasTheOperatorsBetweenItsBeginningAndItsEnd) {
  const at::Tensor a = at::ones({8, 8});
  at::matmul(a, a);
  OperatorProfile profile(at::kCPU);
  at::matmul(a, at::matmul(a, a));
  const std::vector<ProfiledWork> work = profile.stop();
  at::matmul(a, a);
  EXPECT_EQ(count_of(work, "aten::matmul"), 2u);
  EXPECT_TRUE(std::ranges::is_sorted(work, {}, &ProfiledWork::begin));
  EXPECT_FALSE(work[0].on_device);
  EXPECT_EQ(OperatorProfile(at::kCPU).stop().size(), 0u) << "the next one begins anew";
}

TEST(OperatorProfile, OneThatIsNotStoppedDoesNotDisturbTheNext) {
  { const OperatorProfile forgotten(at::kCPU); }
  OperatorProfile profile(at::kCPU);
  at::ones({1});
  EXPECT_EQ(count_of(profile.stop(), "aten::ones"), 1u);
}

TEST(ProfileSummary, CountsEachTimeOnce) {
  const std::vector<ProfiledWork> work{
      {.name = "outer", .lane = "thread 1", .begin = 0, .duration = 10'000},
      {.name = "inner", .lane = "thread 1", .begin = 1'000, .duration = 4'000},
      {.name = "innermost", .lane = "thread 1", .begin = 2'000, .duration = 1'000},
      {.name = "elsewhere", .lane = "thread 2", .begin = 2'500, .duration = 500},
      {.name = "inner", .lane = "thread 1", .begin = 6'000, .duration = 2'000}};
  const std::string text = profile_summary(work, 2);
  EXPECT_THAT(text, HasSubstr("2 a step, busy 5.000 ms, idle 0.000 ms"));
  EXPECT_THAT(text, ContainsRegex("2\\.000 ms +0\\.5 x  outer"));
  EXPECT_THAT(text, ContainsRegex("2\\.500 ms +1\\.0 x  inner"));
  EXPECT_THAT(text, ContainsRegex("0\\.500 ms +0\\.5 x  innermost"));
  EXPECT_THAT(text, Not(HasSubstr("device")));
}

TEST(ProfileSummary, TellsWhenADeviceWaits) {
  const std::vector<ProfiledWork> work{{.name = "kernel",
                                        .lane = "cuda:0 stream 7",
                                        .on_device = true,
                                        .begin = 0,
                                        .duration = 3'000},
                                       {.name = "copy",
                                        .lane = "cuda:0 stream 9",
                                        .on_device = true,
                                        .begin = 1'000,
                                        .duration = 1'000},
                                       {.name = "kernel",
                                        .lane = "cuda:0 stream 7",
                                        .on_device = true,
                                        .begin = 5'000,
                                        .duration = 1'000}};
  const std::string text = profile_summary(work, 1);
  EXPECT_THAT(
      text, HasSubstr("kernels and copies of the device: 3 a step, busy 4.000 ms, idle 2.000 ms"));
  EXPECT_LT(text.find("2.0 x  kernel"), text.find("1.0 x  copy")) << text;
  const Json events = profile_events(work, 3);
  EXPECT_EQ(events[1]["cat"], "kernel");
  EXPECT_EQ(events[1]["tid"], "cuda:0 stream 9");
  EXPECT_EQ(events[1]["pid"], 3);
}

TEST(ProfileSummary, ManyNamesEndInOneRow) {
  std::vector<ProfiledWork> work;
  for (int i = 0; i < 40; ++i)
    work.push_back(
        {.name = std::to_string(i), .lane = "thread 1", .begin = 100.0 * i, .duration = 50});
  EXPECT_THAT(profile_summary(work, 1), HasSubstr("10.0 x  10 more names"));
}

}  // namespace
}  // namespace unishard::test
