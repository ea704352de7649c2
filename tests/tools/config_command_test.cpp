// The verbs `config` and `estimate`.
#include "unishard/format/json.hpp"

#include "expect.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace unishard::test {
namespace {

using testing::HasSubstr;

class ConfigCommand : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text) const {
    const std::string path = (folder_.path() / name).string();
    write_file(path, text);
    return path;
  }
  static ProcessResult unishard(std::vector<std::string> words) {
    words.insert(words.begin(), UNISHARD_BIN "/unishard");
    return run(words);
  }
  static Json json_of(std::vector<std::string> words) {
    words.emplace_back("--json");
    const ProcessResult result = unishard(std::move(words));
    EXPECT_EQ(result.status, 0) << result.err;
    return parse_json(result.out, "output");
  }
  TempDir folder_;
};

TEST_F(ConfigCommand, PrintsWhereEachValueComesFrom) {
  const std::string path = file("ds.json", R"({ // a comment
      "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 0.5,
      "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
      "prescale_gradients": true})");
  const Json json = json_of({"config", path, "--hidden-size", "100"});
  EXPECT_EQ(json["values"]["gradient_clipping"]["value"], 0.5);
  EXPECT_EQ(json["values"]["gradient_clipping"]["from"], "file");
  EXPECT_EQ(json["values"]["train_micro_batch_size_per_gpu"]["value"], 8);
  EXPECT_EQ(json["values"]["zero_optimization.reduce_bucket_size"]["value"], 10000);
  EXPECT_EQ(json["values"]["steps_per_print"]["from"], "default");
  const ProcessResult text = unishard({"config", path});
  EXPECT_THAT(text.out, HasSubstr("note: prescale_gradients: "));
}

TEST_F(ConfigCommand, SaysWhyAFileIsRefused) {
  const ProcessResult result =
      unishard({"config", file("ds.json", R"({"sparse_attention": {"mode": "fixed"}})")});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("sparse_attention is not supported: DeepSpeed 0.19"));
}

TEST_F(ConfigCommand, ExplainsKeys) {
  EXPECT_THAT(unishard({"config", "--explain", "gradient_clipping"}).out,
              HasSubstr("gradient_clipping: a number, zero or more (default: 1.0)"));
  EXPECT_THAT(unishard({"config", "--keys"}).out, HasSubstr("\nzero_optimization.stage\n"));
  EXPECT_EQ(parse_json(unishard({"config", "--schema"}).out, "schema")["type"], "object");
  EXPECT_EQ(unishard({"config"}).status, 2);
  EXPECT_EQ(unishard({"config", "--schema", "--keys"}).status, 2);
}

TEST_F(ConfigCommand, EstimatesAsDeepSpeedDoes) {
  const std::vector<std::string> words{"estimate", "--params", "2851000000", "--largest-layer",
                                       "32000000", "--gpus",   "8"};
  const ProcessResult text = unishard(words);
  EXPECT_THAT(text.out, HasSubstr("SW: Model with 2851M total params, 32M largest layer params."));
  EXPECT_THAT(text.out, HasSubstr("  127.45GB |   5.31GB | offload_optimizer=cpu \n"));
  EXPECT_THAT(
      text.out,
      HasSubstr(
          "   71.69GB |   0.12GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1\n"));
  const Json json = json_of(words);
  EXPECT_EQ(json["parameters"], 2851000000);
  EXPECT_EQ(json["stages"].size(), 10u);
}

TEST_F(ConfigCommand, EstimatesFromAConfigJsonAndRecommends) {
  file("config.json", R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
      "n_positions": 1024, "vocab_size": 50257})");
  const Json json = json_of({"estimate", folder_.path().string(), "--gpus", "4", "--device-memory",
                             "2GiB", "--micro-batch", "1", "--context", "128"});
  EXPECT_EQ(json["parameters"], 124439808);
  EXPECT_EQ(json["largest_layer"], 50257 * 768);
  EXPECT_THAT(json["recommendation"].get<std::string>(), HasSubstr("fits on 4 × 2.00 GiB from"));
  EXPECT_GT(json["activation_bytes"], 0);
}

TEST_F(ConfigCommand, EstimatesEachRankOfAConfiguration) {
  file("config.json", R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
      "n_positions": 1024, "vocab_size": 50257})");
  const std::string config =
      file("ds.json", R"({"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
      "optimizer": {"type": "Lion", "params": {"lr": 1e-4}},
      "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})");
  const std::vector<std::string> words{
      "estimate", folder_.path().string(), "--gpus", "4", "--config", config, "--context", "128"};
  const Json json = json_of(words);
  const Json& ranks = json["ranks"];
  const auto found =
      std::ranges::find_if(ranks, [](const Json& each) { return each["configured"]; });
  ASSERT_NE(found, ranks.end());
  EXPECT_EQ((*found)["stage"], 2);
  EXPECT_EQ((*found)["optimizer"], "cpu");
  const std::int64_t all = 124439808;
  std::map<std::string, std::int64_t> host;
  for (const Json& part : (*found)["parts"])
    if (part["place"] == "cpu") host[part["name"]] += part["bytes"].get<std::int64_t>();
  EXPECT_EQ(host["master weights"], all);    // 4 bytes on 4 ranks
  EXPECT_EQ(host["optimizer states"], all);  // one state
  EXPECT_EQ((*found)["staging_bytes"], 2 * all);
  EXPECT_EQ(json["checkpoint_bytes"], 8 * all);
  EXPECT_GT(json["activation_bytes"], 0);  // of the configuration's micro-batch
  const ProcessResult text = unishard(words);
  EXPECT_THAT(text.out, HasSubstr("* The configuration: stage 2 with optimizer offload to cpu\n"));
  EXPECT_THAT(text.out, HasSubstr("UniShard's trainer: each of 4 ranks, bf16, Lion"));
}

TEST_F(ConfigCommand, EstimateRecommendsFilesWhereMemoryIsTooSmall) {
  const Json json = json_of({"estimate", "--params", "7000000000", "--largest-layer", "131000000",
                             "--gpus", "2", "--device-memory", "32GiB", "--host-memory", "32GiB"});
  EXPECT_THAT(json["recommendation"].get<std::string>(),
              HasSubstr("from stage 2 with optimizer offload to nvme: "));
}

TEST_F(ConfigCommand, EstimatesFromACheckpoint) {
  const Json json = json_of({"estimate", UNISHARD_TEST_DATA "/golden/v1/global_step7"});
  EXPECT_GT(json["parameters"], 0);
  EXPECT_LE(json["largest_layer"], json["parameters"]);
  EXPECT_FALSE(json.contains("is_adapter"));
}

TEST_F(ConfigCommand, AnEstimateOfAnAdapterSaysThatItsBaseIsNotCounted) {
  const Path golden = UNISHARD_TEST_DATA "/golden/v1/global_step7";
  const std::string adapter = file("adapter_config.json", R"({"peft_type": "LORA"})");
  const std::string folder = Path(adapter).parent_path().string();
  ASSERT_EQ(unishard({"zero_to_fp32", golden, folder + "/adapter_model.safetensors"}).status, 0);
  EXPECT_EQ(json_of({"estimate", folder})["is_adapter"], true);
  EXPECT_THAT(unishard({"estimate", folder}).out, HasSubstr("its base model"));
}

TEST_F(ConfigCommand, AnAutomaticNumberOfStepsIsThatOfTrainGpt) {
  const std::string config = file("ds.json", R"({"train_batch_size": 4, "scheduler": {"type":
      "WarmupDecayLR", "params": {"total_num_steps": "auto"}}})");
  EXPECT_EQ(
      json_of({"config", config, "--json"})["values"]["scheduler.params.total_num_steps"]["value"],
      100);
}

TEST_F(ConfigCommand, EstimateRefusesWhatItCannotCount) {
  const std::vector<std::string> model{"--params", "1000000", "--largest-layer", "1000"};
  const auto status = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"estimate"};
    words.insert(words.end(), model.begin(), model.end());
    words.insert(words.end(), more.begin(), more.end());
    return unishard(words).status;
  };
  EXPECT_EQ(status({"--gpus", "65536", "--nodes", "65536"}), 2);
  EXPECT_EQ(status({"--gpus", "65536", "--nodes", "65536", "--config",
                    file("ds.json", R"({"train_batch_size": 4})")}),
            2);
  EXPECT_EQ(status({"--buffer-factor", "nan"}), 2);
  EXPECT_EQ(status({"--micro-batch", "4", "--context", "1024"}), 2);
  EXPECT_EQ(status({"--gpus", "8"}), 0);
  const ProcessResult large = unishard({"estimate", file("config.json", R"({"model_type": "gpt2",
      "n_embd": 1073741824, "n_layer": 2, "n_positions": 8, "vocab_size": 9})")});
  EXPECT_EQ(large.status, 2);
  EXPECT_THAT(large.err, HasSubstr("more than 2^50 parameters"));
  EXPECT_EQ(unishard({"estimate", file("config.json", R"({"model_type": "gpt2", "n_embd": 0,
      "n_layer": 2, "n_positions": 8, "vocab_size": 9})")})
                .status,
            2);
}

TEST_F(ConfigCommand, EstimateRecommendsWhatItsOwnTableSaysFits) {
  for (const std::uint64_t memory : {2300u, 13100u, 16384u, 40000u}) {
    const std::string limit = std::to_string(memory) + "MiB";
    const Json json = json_of({"estimate", "--params", "7000000000", "--largest-layer", "131000000",
                               "--gpus", "8", "--device-memory", limit});
    const auto text = json["recommendation"].get<std::string>();
    const bool fits_any = std::ranges::any_of(json["ranks"], [&](const Json& each) {
      return each["device_bytes"].get<std::uint64_t>() <= memory << 20;
    });
    EXPECT_EQ(text.starts_with("fits on "), fits_any) << text;
  }
}

TEST_F(ConfigCommand, EstimateNamesWhatIsMissing) {
  EXPECT_EQ(unishard({"estimate"}).status, 2);
  EXPECT_EQ(unishard({"estimate", "--params", "7"}).status, 2);
  const ProcessResult other =
      unishard({"estimate", file("config.json", R"({"model_type": "t5"})")});
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.err, HasSubstr("the model_type \"t5\" is not known"));
}

}  // namespace
}  // namespace unishard::test
