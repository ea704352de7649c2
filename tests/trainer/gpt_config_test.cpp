#include "unishard/trainer/gpt_config.hpp"

#include "unishard/format/error.hpp"

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

std::string refusal(const std::string& key, const Json& value) {
  Json config = hub();
  config[key] = value;
  try {
    gpt_from_hugging_face(config, "m/config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    return error.what();
  }
  return "accepted";
}

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
  EXPECT_EQ(refusal("model_type", "llama"), R"(m/config.json: model_type is "llama", not "gpt2")");
  EXPECT_EQ(refusal("model_type", nullptr), R"(m/config.json: model_type is missing, not "gpt2")");
  EXPECT_EQ(
      refusal("activation_function", "relu"),
      R"(m/config.json: activation_function is "relu", not "gelu_new" or "gelu_pytorch_tanh")");
  EXPECT_EQ(refusal("layer_norm_epsilon", 1e-6),
            "m/config.json: layer_norm_epsilon is 1e-06, not 1e-05");
  EXPECT_EQ(refusal("scale_attn_by_inverse_layer_idx", true),
            "m/config.json: scale_attn_by_inverse_layer_idx is true, not false");
  EXPECT_EQ(refusal("scale_attn_weights", false),
            "m/config.json: scale_attn_weights is false, not true");
  EXPECT_EQ(refusal("reorder_and_upcast_attn", 1),
            "m/config.json: reorder_and_upcast_attn is 1, not false");
  EXPECT_EQ(refusal("tie_word_embeddings", 1),
            "m/config.json: tie_word_embeddings is 1, not true or false");
  EXPECT_EQ(refusal("n_inner", 1024), "m/config.json: n_inner is 1024, not null or 4 * n_embd");
  EXPECT_EQ(refusal("n_head", 7),
            "m/config.json: n_embd is 768, not a multiple of n_head, which is 7");
  EXPECT_EQ(refusal("n_ctx", 512), "m/config.json: n_ctx is 512, not n_positions, which is 1024");
  EXPECT_EQ(refusal("n_layer", "12"),
            R"(m/config.json: n_layer is "12", not a whole number from 1 to 16777216)");
  EXPECT_EQ(refusal("vocab_size", -1),
            "m/config.json: vocab_size is -1, not a whole number from 1 to 16777216");
  EXPECT_EQ(refusal("n_embd", Json()),
            "m/config.json: n_embd is missing, not a whole number from 1 to 16777216");
  EXPECT_EQ(refusal("attn_pdrop", 1.5),
            "m/config.json: attn_pdrop is 1.5, not a number from 0 up to 1");
  EXPECT_NE(refusal("attn_pdrop", 0.2).find("attn_pdrop differ"), std::string::npos);
  EXPECT_NE(refusal("architectures", {"GPT2ForSequenceClassification"}).find("architectures is"),
            std::string::npos);
  EXPECT_NE(refusal("pruned_heads", {{"0", {1}}}).find("pruned_heads is"), std::string::npos);
  EXPECT_EQ(refusal("n_inner", 3072), "accepted");
  EXPECT_EQ(refusal("activation_function", "gelu_pytorch_tanh"), "accepted");
  EXPECT_EQ(refusal("architectures", {"GPT2Model"}), "accepted");
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
