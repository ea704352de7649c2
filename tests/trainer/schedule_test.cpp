#include "unishard/trainer/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace unishard::trainer {
namespace {

TEST(Schedule, ConstantIsTheGroupsRate) { EXPECT_EQ(learning_rate({}, 41, 0.25), 0.25); }

TEST(Schedule, WarmupLrLogAndLinear) {
  Schedule schedule{.kind = ScheduleKind::WarmupLR,
                    .warmup_min_lr = 0.1,
                    .warmup_max_lr = 1.1,
                    .warmup_num_steps = 8};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, -1, 9), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 0, 9), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 9), 0.1 + 1.0 / 3);  // ln 2 / ln 8
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 3, 9), 0.1 + 2.0 / 3);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 8, 9), 1.1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1000, 9), 1.1);
  schedule.warmup_type = WarmupType::Linear;
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 2, 9), 0.35);
  schedule.warmup_max_lr = -1;  // the group's
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 8, 2.1), 2.1);
}

TEST(Schedule, WarmupOfOneStepCountsAsTwo) {
  const Schedule schedule{.kind = ScheduleKind::WarmupLR,
                          .warmup_max_lr = 1,
                          .warmup_num_steps = 0,
                          .warmup_type = WarmupType::Linear};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 1), 0.5);
}

TEST(Schedule, WarmupDecayLr) {
  const Schedule schedule{.kind = ScheduleKind::WarmupDecayLR,
                          .warmup_max_lr = 1,
                          .warmup_num_steps = 10,
                          .warmup_type = WarmupType::Linear,
                          .total_num_steps = 30};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 5, 9), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 10, 9), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 20, 9), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 30, 9), 0.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 99, 9), 0.0);
}

TEST(Schedule, WarmupCosineLr) {
  const Schedule schedule{.kind = ScheduleKind::WarmupCosineLR,
                          .warmup_num_steps = 10,
                          .warmup_type = WarmupType::Linear,
                          .total_num_steps = 30,
                          .warmup_min_ratio = 0.2,
                          .cos_min_ratio = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, -1, 2), 0.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 0, 2), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 5, 2), 1.2);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 19, 2),
                   2 * (0.1 + 0.9 * (1 + std::cos(std::acos(-1.0) / 2)) / 2));
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 29, 2), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 500, 2), 0.2);
}

// Numbers of DeepSpeed 0.19; update_rules.py compares many more settings.
TEST(Schedule, OneCycleThenDecay) {
  const Schedule schedule{.kind = ScheduleKind::OneCycle,
                          .one_cycle = {.min_lr = 0.1,
                                        .max_lr = 0.5,
                                        .decay_lr_rate = 0.5,
                                        .first_step_size = 4,
                                        .second_step_size = 8,
                                        .decay_step_size = 2,
                                        .decay_momentum_rate = 0.1}};
  const std::array<double, 2> own{0.7, 0.999};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, -1, 9), 0.1);
  EXPECT_EQ(scheduled_betas(schedule, -1, own), (std::array{0.8, 0.99}));
  EXPECT_NEAR(learning_rate(schedule, 0, 9), 0.2, 1e-15);
  EXPECT_NEAR(scheduled_betas(schedule, 0, own)[0], 0.875, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 3, 9), 0.5, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 8, 9), 0.25, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 12, 9), 0.08, 1e-15);
  EXPECT_NEAR(scheduled_betas(schedule, 12, own)[0], 0.945, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 19, 9), 0.1 / 3, 1e-15);
}

TEST(Schedule, OneCycleInStairs) {
  const Schedule schedule{.kind = ScheduleKind::OneCycle,
                          .one_cycle = {.min_lr = 0.1,
                                        .max_lr = 0.5,
                                        .first_step_size = 4,
                                        .second_step_size = 8,
                                        .first_stair_count = 2,
                                        .second_stair_count = 2,
                                        .cycle_momentum = false}};
  EXPECT_NEAR(learning_rate(schedule, 0, 9), 0.1, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 2, 9), 0.3, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 3, 9), 0.5, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 4, 9), 0.3, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 8, 9), 0.1, 1e-15);
  EXPECT_EQ(scheduled_betas(schedule, 3, {0.7, 0.999}), (std::array{0.7, 0.999}));
}

TEST(Schedule, LrRangeTest) {
  Schedule schedule{.kind = ScheduleKind::LRRangeTest,
                    .range_test = {.min_lr = 0.1, .step_size = 4, .step_rate = 2}};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, -1, 9), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1, 9), 0.2);
  schedule.range_test.staircase = true;
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 2, 9), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 8, 9), 0.5);
}

}  // namespace
}  // namespace unishard::trainer
