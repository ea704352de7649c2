// The sections bf16 and fp16 of the configuration.
#include "unishard/format/error.hpp"
#include "unishard/trainer/config.hpp"

#include "expect.hpp"

#include <gtest/gtest.h>

namespace unishard::trainer {
namespace {

Config read_sections(const char* text) { return parse_config(parse_json(text, "test")); }

TEST(PrecisionConfig, ReadsEveryKeyOfFp16) {
  const Config config =
      read_sections(R"({"fp16": {"enabled": true, "auto_cast": true, "loss_scale": 0,
    "initial_scale_power": 12, "loss_scale_window": 500, "hysteresis": 3, "consecutive_hysteresis": true,
    "min_loss_scale": 4, "fp16_master_weights_and_grads": false}, "bf16": {"enabled": false}})");
  EXPECT_EQ(config.compute, DType::Float16);
  EXPECT_TRUE(config.fp16.auto_cast);
  EXPECT_EQ(config.fp16.loss_scale, 0);
  EXPECT_EQ(config.fp16.initial_scale_power, 12);
  EXPECT_EQ(config.fp16.loss_scale_window, 500);
  EXPECT_EQ(config.fp16.hysteresis, 3);
  EXPECT_TRUE(config.fp16.consecutive_hysteresis);
  EXPECT_EQ(config.fp16.min_loss_scale, 4);
}

TEST(PrecisionConfig, HasDeepSpeedsDefaults) {
  const Config config = read_sections(R"({"fp16": {"enabled": true, "loss_scale": "auto"}})");
  EXPECT_EQ(config.fp16.initial_scale_power, 16);
  EXPECT_EQ(config.fp16.loss_scale_window, 1000);
  EXPECT_EQ(config.fp16.hysteresis, 2);
  EXPECT_FALSE(config.fp16.consecutive_hysteresis);
  EXPECT_EQ(config.fp16.min_loss_scale, 1);
  EXPECT_FALSE(config.fp16.auto_cast);
}

TEST(PrecisionConfig, IgnoresTheWindowWhereNoScaleIsDynamic) {
  EXPECT_EQ(read_sections(R"({"fp16": {"loss_scale_window": 0}})").compute, DType::Float32);
  const Config fixed =
      read_sections(R"({"fp16": {"enabled": true, "loss_scale": 128, "min_loss_scale": 0}})");
  EXPECT_EQ(fixed.compute, DType::Float16);
  EXPECT_EQ(fixed.fp16.loss_scale, 128);
}

TEST(PrecisionConfig, TakesFp16FromAutoAsOff) {
  EXPECT_EQ(read_sections(R"({"fp16": {"enabled": "auto"}, "bf16": {"enabled": true}})").compute,
            DType::BFloat16);
}

struct RefusedPrecision {
  const char* json;
  const char* says;
  friend void PrintTo(const RefusedPrecision& each, std::ostream* out) { *out << each.says; }
};

class PrecisionConfigRefuses : public testing::TestWithParam<RefusedPrecision> {};

TEST_P(PrecisionConfigRefuses, AndNamesThePath) {
  const Error error = test::error_of([] { read_sections(GetParam().json); });
  EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
  EXPECT_THAT(test::message_and_hint(error), testing::HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    All, PrecisionConfigRefuses,
    testing::Values(
        RefusedPrecision{R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})",
                         "bf16 and fp16 are both enabled"},
        RefusedPrecision{R"({"fp16": {"loss_scale": -1}})", "fp16.loss_scale is -1, not 0"},
        RefusedPrecision{R"({"fp16": {"loss_scale": 1e39}})", "fp16.loss_scale is 1e+39"},
        RefusedPrecision{R"({"fp16": {"loss_scale": true}})",
                         "fp16.loss_scale is true, not a number"},
        RefusedPrecision{R"({"fp16": {"enabled": true, "initial_scale_power": 128}})",
                         "fp16.initial_scale_power is 128, not from -127 to 127"},
        RefusedPrecision{R"({"fp16": {"enabled": true, "loss_scale_window": 0}})",
                         "fp16.loss_scale_window is 0, not 1 or more"},
        RefusedPrecision{R"({"fp16": {"enabled": true, "loss_scale_window": 1.5}})",
                         "fp16.loss_scale_window is 1.5, not a whole number"},
        RefusedPrecision{R"({"fp16": {"enabled": true, "hysteresis": 0}})",
                         "fp16.hysteresis is 0, not 1 or more"},
        RefusedPrecision{R"({"fp16": {"enabled": true, "min_loss_scale": 0}})",
                         "fp16.min_loss_scale is 0, not 1 or more"},
        RefusedPrecision{R"({"fp16": {"enabled": true, "consecutive_hysteresis": 1}})",
                         "fp16.consecutive_hysteresis is 1, not true or false"},
        RefusedPrecision{R"({"fp16": {"enabled": true, "fp16_master_weights_and_grads": true}})",
                         "fp16.fp16_master_weights_and_grads is not supported"},
        RefusedPrecision{R"({"fp16": {"hysteresys": 2}})", "did you mean hysteresis?"}));

}  // namespace
}  // namespace unishard::trainer
