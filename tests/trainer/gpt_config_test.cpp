#include "unishard/trainer/gpt_config.hpp"

#include "unishard/format/error.hpp"

#include "expect.hpp"

#include <gtest/gtest.h>

namespace unishard::trainer {
namespace {

/// GPT-2's own file on the hub, in short.
Json hub() {
  return parse_json(R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_type": "cls_index",
    "task_specific_params": {"text-generation": {"do_sample": true}}, "vocab_size": 50257})",
                    "test");
}

GptConfig hub_with(const std::string& key, const Json& value) {
  Json config = hub();
  config[key] = value;
  return gpt_from_hugging_face(config, "m/config.json");
}

Error refusal(const std::string& key, const Json& value) {
  return test::error_of([&] { hub_with(key, value); });
}

auto says(const std::string& problem) {
  return test::Fails(ErrorCode::InvalidArgument, testing::StrEq("m/config.json: " + problem));
}

auto mentions(const std::string& words) { return test::Fails(ErrorCode::InvalidArgument, words); }

TEST(GptConfig, ReadsTheHubsFile) {
  const GptConfig config = gpt_from_hugging_face(hub(), "test");
  EXPECT_EQ(config.vocabulary, 50257);
  EXPECT_EQ(config.context, 1024);
  EXPECT_EQ(config.layers, 12);
  EXPECT_EQ(config.width, 768);
  EXPECT_EQ(config.heads, 12);
  EXPECT_EQ(config.dropout, 0.1);
}

TEST(GptConfig, OldFilesSayContextAndLeaveDefaultsOut) {
  const Json old = parse_json(
      R"({"model_type": "gpt2", "n_ctx": 64, "n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 300})",
      "test");
  const GptConfig config = gpt_from_hugging_face(old, "test");
  EXPECT_EQ(config.context, 64);
  EXPECT_EQ(config.dropout, 0.1);
}

TEST(GptConfig, RefusesWhatItCannotComputeWithKeyAndValue) {
  EXPECT_THAT(refusal("model_type", "llama"), says(R"(model_type is "llama", not "gpt2")"));
  EXPECT_THAT(refusal("model_type", nullptr), says(R"(model_type is missing, not "gpt2")"));
  EXPECT_THAT(refusal("activation_function", "relu"),
              says(R"(activation_function is "relu", not "gelu_new" or "gelu_pytorch_tanh")"));
  EXPECT_THAT(refusal("layer_norm_epsilon", 1e-6), says("layer_norm_epsilon is 1e-06, not 1e-05"));
  EXPECT_THAT(refusal("scale_attn_by_inverse_layer_idx", true),
              says("scale_attn_by_inverse_layer_idx is true, not false"));
  EXPECT_THAT(refusal("scale_attn_weights", false), says("scale_attn_weights is false, not true"));
  EXPECT_THAT(refusal("reorder_and_upcast_attn", 1),
              says("reorder_and_upcast_attn is 1, not false"));
  EXPECT_THAT(refusal("tie_word_embeddings", 1),
              says("tie_word_embeddings is 1, not true or false"));
  EXPECT_THAT(refusal("n_inner", 1024), says("n_inner is 1024, not null or 4 * n_embd"));
  EXPECT_THAT(refusal("n_head", 7), says("n_embd is 768, not a multiple of n_head, which is 7"));
  EXPECT_THAT(refusal("n_ctx", 512), says("n_ctx is 512, not n_positions, which is 1024"));
  EXPECT_THAT(refusal("n_layer", "12"),
              says(R"(n_layer is "12", not a whole number from 1 to 16777216)"));
  EXPECT_THAT(refusal("vocab_size", -1),
              says("vocab_size is -1, not a whole number from 1 to 16777216"));
  EXPECT_THAT(refusal("n_embd", Json()),
              says("n_embd is missing, not a whole number from 1 to 16777216"));
  EXPECT_THAT(refusal("attn_pdrop", 1.5), says("attn_pdrop is 1.5, not a number from 0 up to 1"));
  EXPECT_THAT(refusal("attn_pdrop", 0.2), mentions("attn_pdrop differ"));
  EXPECT_THAT(refusal("architectures", {"GPT2ForSequenceClassification"}),
              mentions("architectures is"));
  EXPECT_THAT(refusal("pruned_heads", {{"0", {1}}}), mentions("pruned_heads is"));
  EXPECT_NO_THROW(hub_with("n_inner", 3072));
  EXPECT_NO_THROW(hub_with("activation_function", "gelu_pytorch_tanh"));
  EXPECT_NO_THROW(hub_with("architectures", {"GPT2Model"}));
  EXPECT_THROW(gpt_from_hugging_face(Json::array(), "test"), Error);
}

TEST(GptConfig, WhatIsWrittenIsReadBack) {
  for (const char* name : {"nano", "gpt2"}) {
    GptConfig config = gpt_preset(name);
    config.dropout = 0.25;
    const Json json = gpt_to_hugging_face(config);
    EXPECT_EQ(json["architectures"], Json({"GPT2LMHeadModel"}));
    EXPECT_EQ(json["tie_word_embeddings"], config.tied_head);
    const GptConfig back = gpt_from_hugging_face(parse_json(json.dump(), "test"), "test");
    EXPECT_EQ(back.vocabulary, config.vocabulary);
    EXPECT_EQ(back.context, config.context);
    EXPECT_EQ(back.layers, config.layers);
    EXPECT_EQ(back.width, config.width);
    EXPECT_EQ(back.heads, config.heads);
    EXPECT_EQ(back.dropout, config.dropout);
  }
}

}  // namespace
}  // namespace unishard::trainer
