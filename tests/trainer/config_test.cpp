#include "unishard/trainer/config.hpp"

#include "unishard/format/error.hpp"

#include "expect.hpp"

#include <fmt/format.h>
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
    "wall_clock_breakdown": true, "seed": 7, "canonical_order": true})");
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
  EXPECT_TRUE(config.wall_clock_breakdown);
  EXPECT_THAT(config.notes,
              testing::ElementsAre(testing::HasSubstr("scheduler.params.warmup_min_lr")));
}

TEST(Config, DefaultsOfAnEmptyObject) {
  const Config config = parse("{}");
  EXPECT_EQ(config.optimizer, "AdamW");
  EXPECT_EQ(config.stage, 0u);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_FALSE(config.folds_every_micro_batch());
}

TEST(Config, MembersThatSayNothingAreNotRecorded) {
  const Config config = parse(R"({"scheduler": null, "fp16": "auto", "seed": 3, "_comment": "x",
      "optimizer": {"type": "Adam", "params": {"momentum": "auto", "eps": 1e-6}}})");
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
  EXPECT_EQ(hyper("Lion"), Hyper{});
}

TEST(Config, MuonHasTwoRatesAndTheDefaultsOfDeepSpeed) {
  const auto read = [](const std::string& params) {
    return parse((R"({"optimizer": {"type": "Muon", "params": {)" + params + "}}}").c_str());
  };
  const Config plain = read("");
  EXPECT_EQ(plain.hyper.lr, 0.02);
  EXPECT_EQ(plain.hyper.momentum, 0.95);
  EXPECT_EQ(plain.hyper.ns_method, NewtonSchulz::Gram);
  EXPECT_EQ(plain.adam.lr, 3e-4);
  EXPECT_EQ(plain.adam.beta2, 0.95);
  EXPECT_EQ(plain.adam.eps, 1e-10);
  EXPECT_TRUE(plain.adam.decoupled_decay);
  const Config shared = read(R"("lr": 0.5, "ns_method": "standard", "weight_decay": 0.1)");
  EXPECT_EQ(shared.hyper.lr, 0.5);
  EXPECT_EQ(shared.adam.lr, 0.5);
  EXPECT_EQ(shared.adam.weight_decay, 0.1);
  EXPECT_EQ(shared.hyper.ns_method, NewtonSchulz::Standard);
  const Config own = read(R"("lr": 0.5, "muon_lr": 0.25, "adam_lr": 0.125)");
  EXPECT_EQ(own.hyper.lr, 0.25);
  EXPECT_EQ(own.adam.lr, 0.125);
  EXPECT_THAT(own.notes, testing::IsEmpty());
}

TEST(Config, ReadsTheProfiler) {
  const Config config = parse(R"({"flops_profiler": {"enabled": true, "profile_step": 5,
      "recompute_fwd_factor": 1, "detailed": false, "output_file": "x", "module_depth": 2,
      "top_modules": 1}})");
  EXPECT_TRUE(config.flops_profiler.enabled);
  EXPECT_EQ(config.flops_profiler.profile_step, 5);
  EXPECT_EQ(config.flops_profiler.recompute_fwd_factor, 1);
  EXPECT_FALSE(config.flops_profiler.detailed);
  EXPECT_EQ(config.flops_profiler.output_file, "x");
  EXPECT_THAT(config.notes, testing::ElementsAre(testing::HasSubstr("module_depth")));
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

TEST(Config, AutoIsWhatTheHuggingFaceTrainerMakesOfIt) {
  const char* const text = R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
      "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                    "weight_decay": "auto"}},
      "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto",
          "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}},
      "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
      "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
          "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}})";
  const Config config =
      parse_config(parse_json(text, "test"), {.flags = {}, .hidden_size = 768, .steps = 500});
  EXPECT_FALSE(config.batch.train);
  EXPECT_EQ(config.batch.micro, 8);
  EXPECT_EQ(config.batch.accumulation, 1);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.hyper.lr, 5e-5);
  EXPECT_EQ(config.schedule.warmup_max_lr, 5e-5);
  EXPECT_EQ(config.schedule.warmup_num_steps, 1);
  EXPECT_EQ(config.schedule.total_num_steps, 500);
  EXPECT_EQ(config.compute, DType::Float32);
  EXPECT_EQ(config.zero.reduce_bucket_size, 589824);
  EXPECT_EQ(config.zero.prefetch_bucket_size, 530841);
  EXPECT_EQ(config.zero.param_persistence_threshold, 7680);
  EXPECT_THAT(config.notes, testing::ElementsAre(testing::StartsWith(
                                "\"auto\" is, as for the Hugging Face Trainer: "
                                "train_micro_batch_size_per_gpu 8 (--micro-batch)")));
  EXPECT_EQ(config.origins.at("optimizer.params.lr"), Origin::Auto);
}

TEST(Config, FlagsPrecedeTheFile) {
  const Config config = parse_config(
      Json::parse(R"({"optimizer": {"params": {"lr": "auto"}}, "bf16": {"enabled": "auto"},
                      "train_micro_batch_size_per_gpu": 4,
                      "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}}})"),
      {.flags = {{"optimizer.params.lr", 0.5},
                 {"bf16.enabled", true},
                 {"train_micro_batch_size_per_gpu", 2}},
       .hidden_size = {},
       .steps = {}});
  EXPECT_EQ(config.hyper.lr, 0.5);
  EXPECT_EQ(config.schedule.warmup_max_lr, 0.5);
  EXPECT_EQ(config.compute, DType::BFloat16);
  EXPECT_EQ(config.batch.micro, 2);
  EXPECT_EQ(config.origins.at("bf16.enabled"), Origin::Flag);
}

TEST(Config, AutoSizesFollowFromTheBatchWhenItIsGiven) {
  const Config config = parse(R"({"train_batch_size": 32, "gradient_accumulation_steps": "auto",
                                  "train_micro_batch_size_per_gpu": "auto"})");
  EXPECT_EQ(config.batch.train, 32);
  EXPECT_FALSE(config.batch.micro);
  EXPECT_FALSE(config.batch.accumulation);
}

TEST(Config, ReadsOldNames) {
  const Config config = parse(R"({"zero_optimization": {"stage": 3, "max_live_parameters": 7,
      "max_reuse_distance": 8, "cpu_offload": true, "cpu_offload_params": true,
      "aio": {"block_size": 4096}}, "optimizer": {"type": "Adam", "params": {"max_grad_norm": 0.5}},
      "bfloat16": {"enabled": true}})");
  EXPECT_EQ(config.zero.max_live_parameters, 7);
  EXPECT_EQ(config.zero.max_reuse_distance, 8);
  EXPECT_EQ(config.offload_optimizer.residence, Residence::Host);
  EXPECT_EQ(config.offload_param.residence, Residence::Host);
  EXPECT_EQ(config.aio.block_size, 4096);
  EXPECT_EQ(config.gradient_clipping, 0.5);
  EXPECT_EQ(config.compute, DType::BFloat16);
  EXPECT_EQ(parse(R"({"zero_optimization": true})").stage, 1u);
  EXPECT_EQ(parse(R"({"zero_optimization": false})").stage, 0u);
}

TEST(Config, ReadsOffload) {
  const Config config = parse(R"({"zero_optimization": {"stage": 3, "sub_group_size": 1e6,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/a", "buffer_count": 6,
          "pin_memory": false, "pipeline_read": true, "fast_init": true, "ratio": 0.3,
          "super_offload": true},
      "offload_param": {"device": "nvme", "nvme_path": "/b", "buffer_count": 7,
          "buffer_size": 1e7, "max_in_cpu": 5}},
      "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 2, "single_submit": true,
              "overlap_events": false}})");
  EXPECT_EQ(config.zero.sub_group_size, 1'000'000);
  EXPECT_EQ(config.offload_optimizer.residence, Residence::File);
  EXPECT_EQ(config.offload_optimizer.nvme_path, "/a");
  EXPECT_EQ(config.offload_optimizer.buffer_count, 6);
  EXPECT_EQ(config.offload_optimizer.ratio, 0.3);
  EXPECT_EQ(config.offload_optimizer.super_offload, true);
  EXPECT_EQ(config.offload_param.max_in_cpu, 5);
  EXPECT_EQ(config.offload_param.residence, Residence::File);
  EXPECT_EQ(config.offload_param.nvme_path, "/b");
  EXPECT_EQ(config.aio.block_size, 262144);
  EXPECT_EQ(config.aio.threads, 2);
  std::size_t said = 0;
  for (const std::string& note : config.notes) said += note.find(": has no effect: ") != note.npos;
  EXPECT_EQ(said, 8u) << "every value that is not the default, and nothing else";
}

TEST(Config, UpdatesAheadThatAnOptimizerDoesWithoutAreSaid) {
  const auto notes = [](const char* optimizer) {
    return parse(fmt::format(R"({{"optimizer": {{"type": "{}"}}, "zero_optimization": {{"stage": 2,
        "offload_optimizer": {{"device": "cpu", "super_offload": true}}}}}})",
                             optimizer)
                     .c_str())
        .notes;
  };
  EXPECT_THAT(notes("Lamb"),
              testing::Contains(testing::HasSubstr("super_offload: has no effect: Lamb")));
  EXPECT_THAT(notes("Muon"),
              testing::Contains(testing::HasSubstr("super_offload: has no effect: Muon")));
  EXPECT_THAT(notes("AdamW"), testing::Not(testing::Contains(testing::HasSubstr("super_offload"))));
}

TEST(Config, AnOrderOfItsOwnAsksForDeterministicOperations) {
  EXPECT_FALSE(parse("{}").is_deterministic());
  EXPECT_TRUE(parse(R"({"canonical_order": true})").is_deterministic());
  EXPECT_TRUE(parse(R"({"deterministic": true})").is_deterministic());
  EXPECT_FALSE(parse(R"({"canonical_order": true, "deterministic": false})").is_deterministic());
}

TEST(Config, SaysThatMemoryIsUpdatedAfterTheBackwardPass) {
  const Config config = parse(R"({"zero_optimization": {"stage": 2,
      "offload_optimizer": {"super_offload": true}}})");
  EXPECT_THAT(config.notes,
              testing::ElementsAre(testing::HasSubstr(
                  "super_offload: has no effect without \"device\": \"cpu\" or \"nvme\"")));
}

TEST(Config, OffloadsToFilesAtEveryStageThatShards) {
  for (const int stage : {1, 2, 3}) {
    const Config config = parse(fmt::format(
                                    R"({{"zero_optimization": {{"stage": {},
            "offload_optimizer": {{"device": "nvme", "nvme_path": "/x"}}}}}})",
                                    stage)
                                    .c_str());
    EXPECT_EQ(config.offload_optimizer.residence, Residence::File) << stage;
  }
}

TEST(Config, OffloadsNothingThatTheStageDoesNotShard) {
  const Config config = parse(R"({"zero_optimization": {"stage": 2,
      "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}})");
  EXPECT_EQ(config.offload_optimizer.residence, Residence::Host);
  EXPECT_EQ(config.offload_param.residence, Residence::Device);
  EXPECT_THAT(config.notes, testing::ElementsAre(testing::HasSubstr("no effect below stage 3")));
}

TEST(Config, AcceptsFeaturesThatAreSwitchedOff) {
  const Config config = parse(R"({"autotuning": {"enabled": false, "fast": true},
      "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": false,
          "fp16_mixed_quantize": {"enabled": true}}, "different_groups": {"a": {"bits": 8}}},
          "layer_reduction": {"enabled": false, "keep_number_layer": 5}},
      "compile": {"disable": true, "backend": "inductor"}, "elasticity": {"enabled": false},
      "data_efficiency": {"enabled": true, "data_sampling": {"enabled": false}},
      "tensor_parallel": {"autotp_size": 1}, "gradient_predivide_factor": 1.0, "amp": {},
      "communication_data_type": "fp32", "zero_optimization": {"zero_hpz_partition_size": 1,
          "zero_quantized_weights": false, "mics_shard_size": -1},
      "fp16": {"enabled": false, "fp16_master_weights_and_grads": true},
      "tensorboard": {"enabled": false, "output_path": "x"}, "comment": "x", "//": 1})");
  EXPECT_THAT(config.notes, testing::IsEmpty());
}

TEST(Config, SaysWhatHappensInsteadOfAKey) {
  const Config config = parse(R"({"cuda_visible_devices": 0, "prescale_gradients": true,
      "monitor_config": {"enabled": true}, "zero_optimization": {"contiguous_gradients": false}})");
  EXPECT_THAT(config.notes,
              testing::ElementsAre(testing::HasSubstr("CUDA_VISIBLE_DEVICES"),
                                   testing::HasSubstr("prescale_gradients: "),
                                   testing::HasSubstr("monitor_config: "),
                                   testing::HasSubstr("contiguous_gradients: has no effect")));
}

TEST(Config, SkipsStepsWhereBf16ChecksForOverflow) {
  EXPECT_EQ(parse(R"({"bf16": {"enabled": true, "check_grad_overflow": true}})").non_finite,
            NonFinite::Skip);
  EXPECT_EQ(parse(R"({"bf16": {"enabled": true}})").non_finite, NonFinite::Error);
}

TEST(Config, ReadsOneCycleAndTheRangeTest) {
  const Schedule cycle = parse(R"({"scheduler": {"type": "OneCycle", "params": {
      "cycle_min_lr": 0.1, "cycle_max_lr": 0.5, "cycle_first_step_size": 10,
      "cycle_first_stair_count": 4, "decay_step_size": 3, "decay_lr_rate": 0.2,
      "cycle_momentum": false}}})")
                             .schedule;
  EXPECT_EQ(cycle.kind, ScheduleKind::OneCycle);
  EXPECT_EQ(cycle.one_cycle.second_step_size, 10);
  EXPECT_EQ(cycle.one_cycle.second_stair_count, 4);
  EXPECT_FALSE(cycle.one_cycle.cycle_momentum);
  const Schedule test = parse(R"({"scheduler": {"type": "LRRangeTest", "params": {
      "lr_range_test_min_lr": 0.1, "lr_range_test_step_size": 5, "lr_range_test_step_rate": 2,
      "lr_range_test_staircase": true}}})")
                            .schedule;
  EXPECT_EQ(test.range_test.min_lr, 0.1);
  EXPECT_TRUE(test.range_test.staircase);
}

TEST(ConfigText, MayHaveCommentsAndCommasAtTheEnd) {
  const Json json = parse_config_text(R"({ // a comment with "quotes"
    "seed": 3, # another one, with a comma
    /* and "seed": 4, */ "optimizer": {"type": "Adam", "params": {"betas": [0.9, 0.99,], }, },
    "_url": "http://x/#y,}", // the last
  })",
                                      "test");
  EXPECT_EQ(json, Json::parse(R"({"seed": 3, "optimizer": {"type": "Adam",
      "params": {"betas": [0.9, 0.99]}}, "_url": "http://x/#y,}"})"));
}

TEST(ConfigText, NamesWhereItIsBroken) {
  const Error error = test::error_of([] { parse_config_text("{\"a\": }", "ds.json"); });
  EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
  EXPECT_THAT(error.what(), testing::HasSubstr("ds.json"));
  EXPECT_EQ(test::error_of([] { parse_config_text("{\"a\": \"", "x"); }).code(),
            ErrorCode::InvalidArgument);
  EXPECT_STREQ(test::error_of([] { parse_config_text("{} /*/", "ds.json"); }).what(),
               "ds.json: the comment at byte 3 has no end");
  EXPECT_EQ(test::error_of([] { read_config_file("/"); }).code(), ErrorCode::InvalidArgument);
}

TEST(Config, ReadsTheFoldersOfMonitors) {
  const Config config = parse(R"({"tensorboard": {"enabled": true, "output_path": "a/b",
      "job_name": "c"}, "csv_monitor": {"enabled": false, "output_path": "a", "job_name": "d"}})");
  EXPECT_EQ(config.tensorboard_folder, "a/b/c");
  EXPECT_EQ(config.csv_folder, "");
  EXPECT_EQ(parse(R"({"csv_monitor": {"enabled": true}})").csv_folder, "DeepSpeedJobName");
}

TEST(Config, SaysThatACycleOfMomentumHasNoEffectOnAnOptimizerWithoutBetas) {
  const auto notes = [](const std::string& optimizer) {
    const std::string json = R"({"optimizer": {"type": ")" + optimizer +
                             R"("}, "scheduler": {"type": "OneCycle", "params":
        {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2, "cycle_momentum": true}}})";
    return parse(json.c_str()).notes;
  };
  EXPECT_THAT(notes("SGD"), testing::Contains(testing::HasSubstr(
                                "scheduler.params.cycle_momentum: has no effect on SGD")));
  EXPECT_THAT(notes("Adam"), testing::IsEmpty());
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
        Refused{R"({"activation_checkpointing": {"contiguous_memory_optimization": true}})",
                "activation_checkpointing.number_checkpoints"},
        Refused{R"({"zero_optimization": {"reduce_bucket_size": -1}})",
                "zero_optimization.reduce_bucket_size is -1, not a whole number from 0 to 2^53"},
        Refused{R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": -1}}})",
                "scheduler.params.warmup_min_lr is -1, not a number, zero or more"},
        Refused{R"({"zzzzzzzzzzzz": 1})", "unknown key zzzzzzzzzzzz | remove it"},
        Refused{R"({"zero_optimization": {"stage": 4}})",
                "zero_optimization.stage is 4, not a whole number from 0 to 3"},
        Refused{R"({"zero_optimization": {"stage": "3"}})",
                "zero_optimization.stage is \"3\", not a whole number"},
        Refused{R"({"zero_optimization": {"stage": 1.5}})", "zero_optimization.stage is 1.5"},
        Refused{R"({"zero_optimization": 3})", "zero_optimization is not an object"},
        Refused{R"({"aio": {"use_gds": true}})", "aio.use_gds"},
        Refused{R"({"zero_optimization": {"offload_optimizer": {"device": "gpu"}}})",
                "offload_optimizer.device is \"gpu\", not \"none\", \"cpu\" or \"nvme\""},
        Refused{R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})",
                "zero_optimization.offload_param.nvme_path is missing"},
        Refused{R"({"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 4}}})",
                "optimizer.type is \"OneBitAdam\": its communication of single bits"},
        Refused{R"({"aio": {"thread_count": 0}})",
                "aio.thread_count is 0, not a whole number from 1 to 1024"},
        Refused{R"({"optimizer": {"params": {"max_grad_norm": 2}}, "gradient_clipping": 1})",
                "gradient_clipping is 1, but optimizer.params.max_grad_norm is 2"},
        Refused{R"({"data_types": {"grad_accum_dtype": "bf16"}})",
                "data_types.grad_accum_dtype is not supported: gradients are added in float32"},
        Refused{R"({"communication_data_type": "bf16"})",
                "communication_data_type is \"bf16\", not \"fp32\""},
        Refused{R"({"num-layers": 12, "hidden-size": 768, "seq-length": 9,
                    "autotuning": {"enabled": true}})",
                "this is a configuration of GPT-NeoX (num-layers, hidden-size, seq-length, ...), "
                "which describes a model and its data too; autotuning is not supported"},
        Refused{R"({"compression_training": {"weight_quantization": {"shared_parameters": {
                    "enabled": true, "fp16_mixed_quantize": {"enabled": false}}}}})",
                "compression_training is not supported"},
        Refused{R"({"zero_optimization": {"load_from_fp32_weights": false}})",
                "zero_optimization.load_from_fp32_weights false is not supported"},
        Refused{R"({"managed_gradient_accumulation": false})",
                "managed_gradient_accumulation false is not supported"},
        Refused{R"({"optimizer": {"params": {"fp32_optimizer_states": false}}})",
                "optimizer.params.fp32_optimizer_states false is not supported"},
        Refused{R"({"prescale_gradients": {}})", "prescale_gradients is {}, not true or false"},
        Refused{R"({"bf16": {"enabled": true}, "bfloat16": {"enabled": false}})",
                "bfloat16.enabled is false, but bf16.enabled is true"},
        Refused{R"({"zero_optimization": {"stage": 2, "cpu_offload": false,
                    "offload_optimizer": {"device": "cpu"}}})",
                "zero_optimization.cpu_offload is false, but "
                "zero_optimization.offload_optimizer.device is \"cpu\""},
        Refused{R"({"zero_optimization": {"stage": 2, "cpu_offload": true,
                    "offload_optimizer": {"device": "none"}}})",
                "zero_optimization.offload_optimizer.device is \"none\", but "
                "zero_optimization.cpu_offload.device is \"cpu\""},
        Refused{R"({"train_batch_size": 5, "train_micro_batch_size_per_gpu": 2})",
                "train_batch_size 5 is no multiple of train_micro_batch_size_per_gpu 2"},
        Refused{R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
                    "gradient_accumulation_steps": 3})",
                "train_micro_batch_size_per_gpu 2 * gradient_accumulation_steps 3"},
        Refused{R"({"zero_optimization": {"reduce_bucket_size": 9223372036854775807}})",
                "not a whole number from 0 to 2^53"},
        Refused{R"({"zero_optimization": {"offload_optimizer": {"nvme_path": "a\u0000b"}}})",
                "nvme_path is \"a\\u0000b\", not a string"},
        Refused{R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1,
                    "cycle_max_lr": 0.2, "cycle_min_mom": 1}}})",
                "scheduler.params.cycle_min_mom is 1, not less than 1"},
        Refused{R"({"sparse_gradients": true})", "sparse_gradients is not supported"},
        Refused{R"({"prescale_gradients": []})", "prescale_gradients is [], not true or false"},
        Refused{
            R"({"amp": {"enabled": true}, "train_batchsize": 1, "elasticity": {"enabled": true}})",
            "unknown key train_batchsize; amp is not supported: DeepSpeed 0.19 has removed it, and "
            "it is not supported here; elasticity is not supported"},
        Refused{R"({"optimizer": {"type": "Adafactor"}})", "Adafactor"},
        Refused{R"({"optimizer": {"type": "Muon", "params": {"per_head_muon": true}}})",
                "per_head_muon is not supported"},
        Refused{R"({"optimizer": {"type": "Muon", "params": {"ns_method": "quick"}}})",
                "ns_method is \"quick\", not \"gram\" or \"standard\""},
        Refused{R"({"optimizer": {"params": {"betas": [0.9]}}})",
                "optimizer.params.betas is [0.9], not a pair"},
        Refused{R"({"optimizer": {"params": {"betas": [0.9, 1.0]}}})", "optimizer.params.betas"},
        Refused{R"({"optimizer": {"params": {"lr": -1}}})",
                "optimizer.params.lr is -1, not a number, zero or more"},
        Refused{R"({"optimizer": {"type": "SGD", "params": {"nesterov": true}}})",
                "without momentum"},
        Refused{R"({"scheduler": {"type": "OneCycle"}})",
                "scheduler.params.cycle_min_lr is missing"},
        Refused{R"({"scheduler": {"type": "WarmupDecayLR"}})",
                "scheduler.params.total_num_steps is missing"},
        Refused{R"({"bf16": {"enabled": 1}})", "bf16.enabled is 1, not true or false"},
        Refused{R"({"gradient_clipping": -1})", "gradient_clipping"},
        Refused{R"({"optimizer": {"type": "AdamW", "params": {"weight_decay": -0.1}}})",
                "optimizer.params.weight_decay is -0.1, not a number"},
        Refused{R"({"optimizer": {"type": "SGD", "params": {"momentum": -0.5}}})",
                "optimizer.params.momentum is -0.5"},
        Refused{R"({"optimizer": {"type": "Adagrad", "params": {"lr_decay": -1}}})",
                "optimizer.params.lr_decay is -1"},
        Refused{R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": -3}}})",
                "scheduler.params.warmup_num_steps is -3"},
        Refused{R"({"scheduler": {"type": "WarmupLR", "params": {"last_batch_iteration": 5}}})",
                "scheduler.params.last_batch_iteration is not supported: a resumed run"},
        Refused{R"({"train_batch_size": 9223372036854775808})",
                "train_batch_size is 9223372036854775808, not a whole number from 1 to 2147483648"},
        Refused{R"({"seed": 18446744073709551615})", "seed is 18446744073709551615, not"},
        Refused{R"({"steps_per_print": 1e300})", "steps_per_print is 1e+300, not a whole number"},
        Refused{R"([1])", "the file is not an object"}));

}  // namespace
}  // namespace unishard::trainer
