// Which config.json a model folder gets from a checkpoint.
#include "workflows/model_config.hpp"

#include "expect.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unishard::tools {
namespace {

Catalog of_dtype(DType dtype) {
  Catalog catalog;
  catalog.tensors.push_back({.fqn = "w",
                             .state = std::string(state::kWeights),
                             .dtype = dtype,
                             .shape = {2},
                             .crc64 = {},
                             .stats = {}});
  return catalog;
}

struct Result {
  converters::SideFiles files;
  std::vector<std::string> notes;
};

Result add_to(converters::SideFiles files, const Json& client_state,
              const Catalog& target = of_dtype(DType::Float32)) {
  Catalog source;
  source.client_state = client_state;
  Result result{std::move(files), {}};
  add_model_config(result.files, source, target, result.notes);
  return result;
}

TEST(ModelConfig, BecomesAFileWithTheDtypeThatIsWritten) {
  const Json state = {{"hf_config", {{"model_type", "gpt2"}, {"dtype", "float32"}}}};
  const Result result = add_to({{"vocab.json", "{}"}}, state, of_dtype(DType::BFloat16));
  ASSERT_EQ(result.files.size(), 2u);
  EXPECT_EQ(result.files[1].first, "config.json");
  EXPECT_EQ(parse_json(result.files[1].second, "test"),
            Json({{"model_type", "gpt2"}, {"dtype", "bfloat16"}}));
  EXPECT_TRUE(result.notes.empty());
}

TEST(ModelConfig, TellsHeadsThatRanksDoNotShareEvenly) {
  const test::TempDir folder;
  EXPECT_FALSE(remark_on_heads(folder.path(), 4));
  test::write_file(folder.path() / "config.json",
                   R"({"num_attention_heads": 8, "num_key_value_heads": 2})");
  EXPECT_FALSE(remark_on_heads(folder.path(), 2));
  EXPECT_THAT(remark_on_heads(folder.path(), 4).value_or(""),
              testing::HasSubstr("num_key_value_heads 2, which 4 tensor-parallel ranks"));
}

TEST(ModelConfig, KeepsTheDtypeWhereTensorsHaveSeveral) {
  Catalog target = of_dtype(DType::BFloat16);
  target.tensors.push_back(target.tensors[0]);
  target.tensors[1].dtype = DType::Float32;
  const Result result = add_to({}, {{"hf_config", {{"dtype", "float32"}}}}, target);
  EXPECT_EQ(parse_json(result.files.at(0).second, "test")["dtype"], "float32");
}

TEST(ModelConfig, AFileBesideTheInputWins) {
  const Result result = add_to({{"config.json", "theirs"}}, {{"hf_config", {{"a", 1}}}});
  ASSERT_EQ(result.files.size(), 1u);
  EXPECT_EQ(result.files[0].second, "theirs");
}

TEST(ModelConfig, NothingIsMadeOfNothing) {
  for (const Json& state : {Json(), Json::array({1}), Json({{"other", 1}}), Json("hf_config")}) {
    const Result result = add_to({}, state);
    EXPECT_TRUE(result.files.empty());
    EXPECT_TRUE(result.notes.empty());
  }
}

TEST(ModelConfig, WhatIsNoObjectOrTooLargeIsNoted) {
  const Result text = add_to({}, {{"hf_config", "gpt2"}});
  EXPECT_TRUE(text.files.empty());
  EXPECT_EQ(text.notes, std::vector<std::string>{
                            "client_state.hf_config: not an object, so there is no config.json"});
  const Result large = add_to({}, {{"hf_config", {{"a", std::string(2u << 20, 'x')}}}});
  EXPECT_TRUE(large.files.empty());
  ASSERT_EQ(large.notes.size(), 1u);
  EXPECT_NE(large.notes[0].find("bytes, more than 1048576"), std::string::npos);
}

}  // namespace
}  // namespace unishard::tools
