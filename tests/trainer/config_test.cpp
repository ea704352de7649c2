#include "unishard/trainer/config.hpp"

#include "unishard/format/error.hpp"

#include "expect.hpp"

#include <gtest/gtest.h>

namespace unishard::trainer {
namespace {

Config parse(const char* text) { return parse_config(parse_json(text, "test")); }

TEST(Config, ReadsAWholeDeepSpeedFile) {
  const Config config = parse(R"({
    "train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-9, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": 100,
                  "warmup_min_lr": "auto", "warmup_max_lr": 3e-4, "warmup_type": "linear"}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "overlap_comm": true,
                          "offload_optimizer": {"device": "none"}},
    "bf16": {"enabled": true}, "fp16": {"enabled": false}, "gradient_clipping": 0.5, "steps_per_print": 1e1,
    "wall_clock_breakdown": false, "seed": 7, "canonical_order": true})");
  EXPECT_EQ(config.batch.train, 32);
  EXPECT_EQ(config.batch.micro, 4);
  EXPECT_FALSE(config.batch.accumulation);
  EXPECT_EQ(config.hyper.lr, 3e-4);
  EXPECT_EQ(config.hyper.beta2, 0.95);
  EXPECT_EQ(config.hyper.weight_decay, 0.1);
  EXPECT_EQ(config.schedule.kind, ScheduleKind::WarmupDecayLR);
  EXPECT_EQ(config.schedule.warmup_type, WarmupType::Linear);
  EXPECT_EQ(config.schedule.total_num_steps, 100);
  EXPECT_EQ(config.stage, 3u);
  EXPECT_EQ(config.compute, DType::BFloat16);
  EXPECT_EQ(config.gradient_clipping, 0.5);
  EXPECT_EQ(config.steps_per_print, 10);
  EXPECT_EQ(config.seed, 7u);
  EXPECT_EQ(config.zero.reduce_bucket_size, 500'000'000);
  EXPECT_TRUE(config.zero.overlap_comm);
  EXPECT_THAT(config.notes, testing::ElementsAre(testing::HasSubstr("wall_clock_breakdown")));
}

TEST(Config, DefaultsOfAnEmptyObject) {
  const Config config = parse("{}");
  EXPECT_EQ(config.optimizer, "AdamW");
  EXPECT_EQ(config.stage, 0u);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_FALSE(config.folds_every_micro_batch());
}

TEST(Config, MembersThatSayNothingAreNotRecorded) {
  const Config config = parse(R"({"scheduler": null, "fp16": "auto", "seed": 3,
      "optimizer": {"type": "Adam", "params": {"lr": "auto", "eps": 1e-6}}})");
  EXPECT_EQ(config.source,
            Json::parse(R"({"seed": 3, "optimizer": {"type": "Adam", "params": {"eps": 1e-6}}})"));
}

TEST(Config, AdamWDecouplesItsDecayAsInDeepSpeed) {
  const auto decouples = [](const std::string& type) {
    return parse((R"({"optimizer": {"type": ")" + type + R"(", "params": {"adam_w_mode": false}}})")
                     .c_str())
        .hyper.decoupled_decay;
  };
  EXPECT_TRUE(decouples("AdamW"));
  EXPECT_TRUE(decouples("adamw"));
  EXPECT_FALSE(decouples("Adam"));
}

TEST(Config, EachOptimizerHasDeepSpeedsDefaults) {
  const auto hyper = [](const std::string& type) {
    return parse((R"({"optimizer": {"type": ")" + type + R"("}})").c_str()).hyper;
  };
  EXPECT_EQ(hyper("AdamW"), Hyper{});
  EXPECT_EQ(hyper("Adagrad").lr, 1e-2);
  EXPECT_EQ(hyper("Adagrad").eps, 1e-10);
  EXPECT_EQ(hyper("Lion").beta2, 0.99);
}

TEST(Config, ParametersOfAnotherOptimizerAreNoted) {
  const Config config = parse(R"({"optimizer": {"type": "AdamW",
      "params": {"betas": [0.9, 0.95], "momentum": 0.9, "lr_decay": "auto"}}})");
  EXPECT_THAT(config.notes, testing::ElementsAre(testing::HasSubstr("optimizer.params.momentum")));
}

TEST(Config, ParametersOfAnotherScheduleAreNoted) {
  const Config config = parse(R"({"scheduler": {"type": "WarmupCosineLR", "params": {
      "total_num_steps": 9, "warmup_num_steps": 2, "warmup_max_lr": 0.1, "cos_min_ratio": 0.1}}})");
  EXPECT_THAT(config.notes, testing::ElementsAre(
                                "scheduler.params.warmup_max_lr: has no effect on this schedule"));
}

TEST(Config, ReadsTheLimitsOfCommunication) {
  const Config config = parse(R"({"zero_optimization": {"stage": 3, "overlap_comm": false,
      "reduce_bucket_size": 1, "allgather_bucket_size": 2e8, "stage3_prefetch_bucket_size": 3,
      "stage3_max_live_parameters": 4, "stage3_max_reuse_distance": 5,
      "stage3_param_persistence_threshold": "auto", "contiguous_gradients": true}})");
  EXPECT_FALSE(config.zero.overlap_comm);
  EXPECT_EQ(config.zero.reduce_bucket_size, 1);
  EXPECT_EQ(config.zero.allgather_bucket_size, 200'000'000);
  EXPECT_EQ(config.zero.prefetch_bucket_size, 3);
  EXPECT_EQ(config.zero.max_live_parameters, 4);
  EXPECT_EQ(config.zero.max_reuse_distance, 5);
  EXPECT_EQ(config.zero.param_persistence_threshold, 0);
}

TEST(Config, ReadsActivationCheckpointing) {
  const Config config = parse(R"({"activation_checkpointing": {"partition_activations": false,
      "cpu_checkpointing": true, "contiguous_memory_optimization": true, "number_checkpoints": 12,
      "profile": true}})");
  ASSERT_TRUE(config.activation_checkpointing);
  EXPECT_TRUE(config.activation_checkpointing->cpu_checkpointing);
  EXPECT_TRUE(config.activation_checkpointing->contiguous_memory_optimization);
  EXPECT_EQ(config.activation_checkpointing->number_checkpoints, 12);
  EXPECT_TRUE(config.activation_checkpointing->profile);
  EXPECT_FALSE(parse("{}").activation_checkpointing);
}

struct Refused {
  const char* json;
  const char* says;
};

class ConfigRefuses : public testing::TestWithParam<Refused> {};

TEST_P(ConfigRefuses, AndNamesThePath) {
  const Error error = test::error_of([] { parse(GetParam().json); });
  EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
  EXPECT_THAT(test::message_and_hint(error), testing::HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigRefuses,
    testing::Values(
        Refused{R"({"train_batchsize": 1})",
                "unknown key train_batchsize | did you mean train_batch_size?"},
        Refused{R"({"zero_optimization": {"stge": 1}})",
                "unknown key zero_optimization.stge | did you mean stage?"},
        Refused{R"({"optimizer": {"type": "AdamW", "params": {"learning": 1}}})",
                "optimizer.params.learning"},
        Refused{R"({"activation_checkpointing": {"partition_activations": true}})",
                "activation_checkpointing.partition_activations"},
        Refused{R"({"activation_checkpointing": {"contiguous_memory_optimization": true}})",
                "activation_checkpointing.number_checkpoints"},
        Refused{R"({"zero_optimization": {"contiguous_gradients": false}})",
                "zero_optimization.contiguous_gradients"},
        Refused{R"({"zero_optimization": {"reduce_bucket_size": -1}})",
                "zero_optimization.reduce_bucket_size"},
        Refused{R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": -1}}})",
                "scheduler.params.warmup_min_lr is -1, not zero or more"},
        Refused{R"({"zzzzzzzzzzzz": 1})", "unknown key zzzzzzzzzzzz | remove it"},
        Refused{R"({"zero_optimization": {"stage": 4}})",
                "zero_optimization.stage is 4, not 0, 1, 2 or 3"},
        Refused{R"({"zero_optimization": {"stage": "3"}})",
                "zero_optimization.stage is \"3\", not a whole number"},
        Refused{R"({"zero_optimization": {"stage": 1.5}})", "zero_optimization.stage is 1.5"},
        Refused{R"({"zero_optimization": 3})", "zero_optimization is not an object"},
        Refused{R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})",
                "zero_optimization.offload_optimizer is not supported"},
        Refused{R"({"sparse_gradients": true})", "sparse_gradients is not supported"},
        Refused{R"({"prescale_gradients": []})", "prescale_gradients is not supported"},
        Refused{R"({"gradient_predivide_factor": 2.0})",
                "gradient_predivide_factor is not supported"},
        Refused{
            R"({"amp": {"enabled": true}, "train_batchsize": 1, "elasticity": {"enabled": true}})",
            "amp is not supported; unknown key train_batchsize; elasticity is not supported | "
            "remove it or switch it off; did you mean train_batch_size?"},
        Refused{R"({"optimizer": {"type": "Adafactor"}})", "Adafactor"},
        Refused{R"({"optimizer": {"params": {"betas": [0.9]}}})",
                "optimizer.params.betas is [0.9], not a pair"},
        Refused{R"({"optimizer": {"params": {"betas": [0.9, 1.0]}}})", "optimizer.params.betas"},
        Refused{R"({"optimizer": {"params": {"lr": -1}}})",
                "optimizer.params.lr is -1, not zero or more"},
        Refused{R"({"optimizer": {"type": "SGD", "params": {"nesterov": true}}})",
                "without momentum"},
        Refused{R"({"scheduler": {"type": "OneCycle"}})", "scheduler.type is \"OneCycle\""},
        Refused{R"({"scheduler": {"type": "WarmupDecayLR"}})",
                "scheduler.params.total_num_steps is missing"},
        Refused{R"({"bf16": {"enabled": 1}})", "bf16.enabled is 1, not true or false"},
        Refused{R"({"gradient_clipping": -1})", "gradient_clipping"},
        Refused{R"({"optimizer": {"type": "AdamW", "params": {"weight_decay": -0.1}}})",
                "optimizer.params.weight_decay is -0.1, not zero or more"},
        Refused{R"({"optimizer": {"type": "SGD", "params": {"momentum": -0.5}}})",
                "optimizer.params.momentum is -0.5"},
        Refused{R"({"optimizer": {"type": "Adagrad", "params": {"lr_decay": -1}}})",
                "optimizer.params.lr_decay is -1"},
        Refused{R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": -3}}})",
                "scheduler.params.warmup_num_steps is -3"},
        Refused{R"({"scheduler": {"type": "WarmupLR", "params": {"last_batch_iteration": 5}}})",
                "scheduler.params.last_batch_iteration is 5"},
        Refused{R"({"train_batch_size": 9223372036854775808})",
                "train_batch_size is 9223372036854775808, not a whole number below 2^63"},
        Refused{R"({"seed": 18446744073709551615})", "seed is 18446744073709551615, not"},
        Refused{R"({"steps_per_print": 1e300})", "steps_per_print is 1e+300, not a whole number"},
        Refused{R"([1])", "$ is not an object"}));

}  // namespace
}  // namespace unishard::trainer
