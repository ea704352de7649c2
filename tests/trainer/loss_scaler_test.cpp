// The rules of the loss scale on small cases. tests/interop/peers/loss_scaling.py compares it with
// DeepSpeed's over thousands of steps.
#include "precision/loss_scaler.hpp"

#include "unishard/format/error.hpp"

#include "expect.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace unishard::trainer {
namespace {

using detail::LossScaler;

/// Runs a step for each letter, 'x' with an overflow, and returns the scales after them.
std::vector<double> scales(LossScaler& scaler, std::string_view steps) {
  std::vector<double> found;
  for (const char step : steps) {
    scaler.update(step == 'x');
    found.push_back(scaler.scale());
  }
  return found;
}

std::vector<double> scales(const Fp16& settings, std::string_view steps) {
  LossScaler scaler(settings);
  return scales(scaler, steps);
}

using Scales = std::vector<double>;

TEST(LossScaler, BeginsAtItsPowerAndHalvesAtEachOverflow) {
  const Fp16 settings{.initial_scale_power = 4, .hysteresis = 1};
  EXPECT_EQ(LossScaler(settings).scale(), 16);
  EXPECT_EQ(scales(settings, "x.xx"), (Scales{8, 8, 4, 2}));
}

TEST(LossScaler, WaitsForTheNthOverflowAndHalvesFromThereOn) {
  const Fp16 settings{.initial_scale_power = 4, .hysteresis = 3};
  EXPECT_EQ(scales(settings, "x.x.xx"), (Scales{16, 16, 16, 16, 8, 4}));
}

TEST(LossScaler, CountsOverflowsAnewAfterAStepWithoutOneWhereAsked) {
  const Fp16 settings{.initial_scale_power = 4, .hysteresis = 2, .consecutive_hysteresis = true};
  EXPECT_EQ(scales(settings, "x.x.xx"), (Scales{16, 16, 16, 16, 16, 8}));
}

TEST(LossScaler, DoublesAfterAWindowWithoutOverflow) {
  const Fp16 settings{.initial_scale_power = 2, .loss_scale_window = 3, .hysteresis = 1};
  EXPECT_EQ(scales(settings, "......."), (Scales{4, 4, 4, 8, 8, 8, 16}));
  EXPECT_EQ(scales(settings, "..x....."), (Scales{4, 4, 2, 2, 2, 2, 4, 4}));
}

TEST(LossScaler, RefillsTheHysteresisWhenTheScaleGrows) {
  const Fp16 settings{.initial_scale_power = 4, .loss_scale_window = 2, .hysteresis = 2};
  EXPECT_EQ(scales(settings, "x...x"), (Scales{16, 16, 16, 32, 32}));
}

TEST(LossScaler, StopsTheRunWhereTheSmallestScaleOverflows) {
  LossScaler scaler({.initial_scale_power = 2, .hysteresis = 1, .min_loss_scale = 3});
  EXPECT_EQ(scales(scaler, "x"), Scales{3});
  const Json before = scaler.state();
  const Error error = test::error_of([&] { scaler.update(true); });
  EXPECT_EQ(error.code(), ErrorCode::NotFinite);
  EXPECT_THAT(error.what(), testing::HasSubstr("smallest loss scale, 3"));
  EXPECT_EQ(scaler.state(), before);
  EXPECT_EQ(
      scales({.initial_scale_power = 0, .hysteresis = 1, .raise_error_at_min_scale = false}, "xx."),
      (Scales{1, 1, 1}));
}

TEST(LossScaler, NeverGrowsToInfinity) {
  const Fp16 settings{.initial_scale_power = 126, .loss_scale_window = 1, .hysteresis = 1};
  EXPECT_EQ(scales(settings, "....x"), (Scales{0x1p126, 0x1p127, 0x1p127, 0x1p127, 0x1p126}));
}

TEST(LossScaler, KeepsAStaticScale) {
  LossScaler scaler({.loss_scale = 100, .hysteresis = 1});
  EXPECT_EQ(scales(scaler, "x..x"), (Scales{100, 100, 100, 100}));
  EXPECT_EQ(scaler.state(), (Json{{"cur_scale", 100.0}, {"dynamic", false}}));
}

TEST(LossScaler, HasTheFieldsOfDeepSpeedsClass) {
  LossScaler scaler({.initial_scale_power = 3, .hysteresis = 2});
  scales(scaler, ".x.");
  EXPECT_EQ(scaler.state(), parse_json(R"({"cur_scale": 8.0, "dynamic": true, "cur_iter": 3,
    "last_overflow_iter": 1, "scale_factor": 2.0, "scale_window": 1000, "min_scale": 1, "delayed_shift": 2,
    "cur_hysteresis": 1, "consecutive_hysteresis": false, "raise_error_at_min_scale": true,
    "dtype": "torch.float16"})",
                                       "test"));
}

TEST(LossScaler, ContinuesFromItsStateAtAnyStep) {
  const Fp16 settings{.initial_scale_power = 10, .loss_scale_window = 5, .hysteresis = 2};
  std::mt19937 random(1);
  LossScaler whole(settings);
  LossScaler resumed(settings);
  for (int step = 0; step < 500; ++step) {
    const bool overflow = random() % 9 == 0;
    whole.update(overflow);
    resumed.update(overflow);
    std::vector<std::string> notes;
    LossScaler next(settings);
    next.restore(parse_json(resumed.state().dump(), "test"), notes);
    EXPECT_TRUE(notes.empty());
    resumed = next;
    ASSERT_EQ(resumed.state(), whole.state()) << step;
  }
}

TEST(LossScaler, TakesOverWhatStageZeroOfDeepSpeedSaves) {
  std::vector<std::string> notes;
  LossScaler scaler(Fp16{});
  scaler.restore({{"dynamic_loss_scale", true},
                  {"cur_scale", 512},
                  {"cur_iter", 9},
                  {"last_overflow_iter", 4},
                  {"scale_factor", 2.0},
                  {"scale_window", 1000}},
                 notes);
  EXPECT_TRUE(notes.empty());
  EXPECT_EQ(scaler.scale(), 512);
  EXPECT_EQ(scaler.state()["cur_iter"], 9);
  EXPECT_EQ(scaler.state()["cur_hysteresis"], 2);
}

TEST(LossScaler, KeepsItsSettingsAndNotesOthers) {
  std::vector<std::string> notes;
  LossScaler saved({.loss_scale_window = 7, .hysteresis = 5});
  LossScaler scaler({.loss_scale_window = 100, .hysteresis = 2});
  scaler.restore(saved.state(), notes);
  EXPECT_EQ(scaler.state()["scale_window"], 100);
  EXPECT_EQ(scaler.state()["cur_hysteresis"], 2);
  EXPECT_THAT(notes,
              testing::ElementsAre("fp16.loss_scale_window was 7, the configuration's 100 is used",
                                   "fp16.hysteresis was 5, the configuration's 2 is used"));
}

TEST(LossScaler, BeginsAnewAfterARunWithoutOrWithAnotherKindOfScaling) {
  std::vector<std::string> notes;
  LossScaler scaler({.initial_scale_power = 5});
  scaler.restore(nullptr, notes);
  EXPECT_TRUE(notes.empty());
  scaler.restore({{"cur_scale", 1.0}, {"dynamic", false}}, notes);
  EXPECT_EQ(scaler.scale(), 32);
  EXPECT_THAT(
      notes, testing::ElementsAre(
                 "the checkpoint's loss scale is static, the configuration's dynamic one is used"));
}

TEST(LossScaler, RefusesDamagedStates) {
  for (const auto& [field, value] : std::vector<std::pair<const char*, Json>>{
           {"cur_scale", 0},
           {"cur_scale", -2},
           {"cur_scale", "8"},
           {"cur_scale", nullptr},
           {"cur_scale", std::numeric_limits<double>::infinity()},
           {"cur_iter", 0.5},
           {"cur_iter", -2},
           {"cur_iter", std::uint64_t{1} << 63},
           {"last_overflow_iter", std::int64_t{1} << 54},
           {"cur_hysteresis", "x"},
           {"dynamic", 1}}) {
    LossScaler scaler(Fp16{});
    const Json before = scaler.state();
    Json saved = before;
    saved[field] = value;
    std::vector<std::string> notes;
    const Error error = test::error_of([&] { scaler.restore(saved, notes); });
    EXPECT_EQ(error.code(), ErrorCode::Corrupt);
    EXPECT_THAT(error.what(), testing::HasSubstr("loss_scaler." + std::string(field)));
    EXPECT_EQ(scaler.state(), before);
  }
  std::vector<std::string> notes;
  EXPECT_THROW(LossScaler(Fp16{}).restore(Json::array(), notes), Error);
}

}  // namespace
}  // namespace unishard::trainer
