// The table of keys: that it agrees with the structs, the page and itself.
#include "unishard/trainer/config_keys.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/storage.hpp"

#include "expect.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace unishard::trainer {
namespace {

TEST(ConfigKeys, HaveOneRowEach) {
  std::set<std::string> paths;
  for (const ConfigKey& key : config_keys())
    EXPECT_TRUE(paths.insert(path_of(key)).second) << path_of(key);
  for (const OldKey& old : old_config_keys())
    EXPECT_NE(find_config_key(old.now), nullptr) << old.now;
}

TEST(ConfigKeys, SayWhatTheyDo) {
  for (const ConfigKey& key : config_keys()) {
    EXPECT_FALSE(key.text.empty()) << path_of(key);
    EXPECT_EQ(key.use == KeyUse::Read, key.text.ends_with('.')) << path_of(key);
    if (!key.section.empty()) {
      const ConfigKey* section = find_config_key(key.section);
      ASSERT_NE(section, nullptr) << path_of(key);
      EXPECT_EQ(section->type, KeyType::Section) << path_of(key);
    }
  }
}

/// The defaults of the table are those of the structs, for which the engine was tested.
TEST(ConfigKeys, DefaultsAreThoseOfTheStructs) {
  const Config read = parse_config(Json::object());
  const Config plain;
  EXPECT_EQ(read.hyper, plain.hyper);
  EXPECT_EQ(read.schedule.kind, plain.schedule.kind);
  EXPECT_EQ(read.stage, plain.stage);
  EXPECT_EQ(read.gradient_clipping, plain.gradient_clipping);
  EXPECT_EQ(read.steps_per_print, plain.steps_per_print);
  EXPECT_EQ(read.seed, plain.seed);
  EXPECT_EQ(read.sum, plain.sum);
  EXPECT_EQ(read.non_finite, plain.non_finite);
  EXPECT_EQ(read.zero.overlap_comm, plain.zero.overlap_comm);
  EXPECT_EQ(read.zero.reduce_bucket_size, plain.zero.reduce_bucket_size);
  EXPECT_EQ(read.zero.prefetch_bucket_size, plain.zero.prefetch_bucket_size);
  EXPECT_EQ(read.zero.max_live_parameters, plain.zero.max_live_parameters);
  EXPECT_EQ(read.zero.param_persistence_threshold, plain.zero.param_persistence_threshold);
  EXPECT_EQ(read.zero.sub_group_size, plain.zero.sub_group_size);
  EXPECT_EQ(read.offload_optimizer, plain.offload_optimizer);
  EXPECT_EQ(read.offload_param, plain.offload_param);
  EXPECT_EQ(read.aio.block_size, plain.aio.block_size);
  EXPECT_EQ(read.fp16.initial_scale_power, plain.fp16.initial_scale_power);
}

/// A whole file of defaults reads as the empty file.
TEST(ConfigKeys, DefaultsMayBeWritten) {
  Json json = Json::object();
  for (const ConfigKey& key : config_keys()) {
    if (key.initial.empty() || key.section.starts_with("scheduler")) continue;
    const std::string path = "/" + path_of(key);
    std::string pointer = path;
    std::ranges::replace(pointer, '.', '/');
    json[Json::json_pointer(pointer)] = Json::parse(key.initial);
  }
  const Config config = parse_config(json);
  EXPECT_EQ(config.hyper, Hyper{});
  for (const std::string& note : config.notes)
    EXPECT_THAT(note, testing::HasSubstr("has no effect on this optimizer"));
}

TEST(ConfigKeys, ThePageIsWrittenFromThem) {
  const std::string page = read_text(
      posix_storage(), Path(UNISHARD_TEST_DATA).parent_path() / "trainer/CONFIG.md", 1 << 20);
  EXPECT_EQ(page, config_page()) << "unishard config --page > trainer/CONFIG.md";
}

TEST(ConfigKeys, ExplainsAKeyByItsPathItsNameAndItsOldName) {
  EXPECT_THAT(explain_config_key("optimizer.params.lr"),
              testing::AllOf(testing::HasSubstr("default: 0.001"), testing::HasSubstr("--lr"),
                             testing::HasSubstr("5e-05")));
  EXPECT_THAT(explain_config_key("cpu_offload"),
              testing::HasSubstr("zero_optimization.offload_optimizer.device"));
  EXPECT_THAT(explain_config_key("zenflow"), testing::HasSubstr("Refused"));
  const Error error = test::error_of([] { explain_config_key("train_batchsize"); });
  EXPECT_THAT(test::message_and_hint(error), testing::HasSubstr("train_batch_size?"));
}

TEST(ConfigKeys, ValuesSayWhereTheyComeFrom) {
  const Config config =
      parse_config(Json::parse(R"({"train_batch_size": 8, "optimizer": {"type": "Lion", "params": {
                      "lr": "auto"}}, "gradient_clipping": 0.5})"),
                   {.flags = {{"seed", 9}}, .hidden_size = {}, .steps = {}});
  std::map<std::string, ConfigValue> values;
  for (const ConfigValue& value : config_values(config)) values[value.path] = value;
  EXPECT_EQ(values.at("train_batch_size").from, "file");
  EXPECT_EQ(values.at("optimizer.params.lr").value, 5e-5);
  EXPECT_THAT(values.at("optimizer.params.lr").from, testing::StartsWith("auto: "));
  EXPECT_EQ(values.at("optimizer.params.betas").value, Json::parse("[0.9, 0.999]"));
  EXPECT_EQ(values.at("optimizer.params.betas").from, "default");
  EXPECT_EQ(values.at("seed").from, "--seed");
  EXPECT_FALSE(values.contains("optimizer.params.momentum"));
}

TEST(ConfigKeys, TheSchemaHasEveryKey) {
  const Json schema = config_schema();
  EXPECT_EQ(schema["properties"]["train_batch_size"]["anyOf"][0]["minimum"], 1);
  const Json& zero = schema["properties"]["zero_optimization"]["anyOf"][0];
  EXPECT_EQ(zero["properties"]["stage"]["default"], 0);
  EXPECT_TRUE(zero["properties"]["offload_param"]["properties"].contains("buffer_size"));
  EXPECT_EQ(zero["additionalProperties"], false);
}

}  // namespace
}  // namespace unishard::trainer
