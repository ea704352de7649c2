#include "unishard/trainer/llama_config.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/model_config.hpp"

#include "expect.hpp"

#include <gtest/gtest.h>

namespace unishard::trainer {
namespace {

/// Llama 3.1 8B's own file on the hub, in short, as transformers 4 wrote it.
Json llama_hub() {
  return parse_json(R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
    "vocab_size": 128256})",
                    "test");
}

Json small_llama(const std::string& model_type) {
  return {{"model_type", model_type}, {"vocab_size", 300},
          {"hidden_size", 64},        {"intermediate_size", 96},
          {"num_hidden_layers", 3},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"max_position_embeddings", 96}};
}

LlamaConfig llama_with(Json config, const Json& changes = Json::object()) {
  config.update(changes);
  return llama_from_hugging_face(config, "m/config.json");
}

LlamaConfig scaled_llama(const Json& rope) {
  return llama_with(small_llama("llama"), {{"rope_scaling", rope}});
}

void expect_llama_refused(const std::string& model_type, const Json& changes,
                          const std::string& says) {
  EXPECT_THAT(test::error_of([&] { llama_with(small_llama(model_type), changes); }),
              test::Fails(ErrorCode::InvalidArgument, testing::StrEq("m/config.json: " + says)));
}

void expect_rope_refused(const Json& rope, const std::string& says) {
  expect_llama_refused("llama", {{"rope_scaling", rope}}, "rope_scaling: " + says);
}

TEST(LlamaConfig, ReadsTheHubsFile) {
  const LlamaConfig config = llama_from_hugging_face(llama_hub(), "test");
  EXPECT_EQ(config.family, LlamaFamily::Llama);
  EXPECT_EQ(config.vocabulary, 128256);
  EXPECT_EQ(config.positions, 131072);
  EXPECT_EQ(config.layers, 32);
  EXPECT_EQ(config.width, 4096);
  EXPECT_EQ(config.inner, 14336);
  EXPECT_EQ(config.heads, 32);
  EXPECT_EQ(config.kv_heads, 8);
  EXPECT_EQ(config.width_of_head(), 128);
  EXPECT_EQ(config.epsilon, 1e-5);
  EXPECT_FALSE(config.tied_head);
  EXPECT_EQ(config.rotary, (RotaryConfig{.scaling = RotaryScaling::Llama3,
                                         .theta = 500000,
                                         .factor = 8,
                                         .original_positions = 8192,
                                         .low_frequency_factor = 1,
                                         .high_frequency_factor = 4}));
  EXPECT_EQ(config.other.at("eos_token_id"), Json({128001, 128008, 128009}));
}

TEST(LlamaConfig, TheFamiliesDifferInWhatTheFileLeavesOut) {
  const LlamaConfig llama = llama_with(small_llama("llama"), {{"num_key_value_heads", nullptr}});
  EXPECT_EQ(llama.kv_heads, 4);
  EXPECT_EQ(llama.window, 0);
  EXPECT_FALSE(llama.qkv_bias || llama.output_bias || llama.mlp_bias || llama.qk_norm);
  const LlamaConfig mistral = llama_with(small_llama("mistral"));
  EXPECT_EQ(mistral.window_of(2), 4096);
  EXPECT_EQ(llama_with(small_llama("mistral"), {{"sliding_window", nullptr}}).window_of(2), 0);
  const LlamaConfig qwen2 = llama_with(small_llama("qwen2"), {{"sliding_window", 16}});
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.output_bias && !qwen2.qk_norm);
  EXPECT_EQ(qwen2.window_of(2), 0);
  const LlamaConfig qwen3 = llama_with(small_llama("qwen3"));
  EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias);
  EXPECT_EQ(qwen3.width_of_head(), 128);
}

TEST(LlamaConfig, LayersSlideAsTheFileSays) {
  const Json slides = {{"use_sliding_window", true}, {"sliding_window", 16}};
  Json upper = slides;
  upper["max_window_layers"] = 2;
  const LlamaConfig by_number = llama_with(small_llama("qwen2"), upper);
  EXPECT_EQ(by_number.window_of(1), 0);
  EXPECT_EQ(by_number.window_of(2), 16);
  Json listed = slides;
  listed["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
  const LlamaConfig by_name = llama_with(small_llama("qwen3"), listed);
  EXPECT_EQ(by_name.window_of(0), 16);
  EXPECT_EQ(by_name.window_of(2), 0);
  listed["layer_types"] = {"full_attention"};
  expect_llama_refused("qwen3", listed,
                       R"(layer_types is ["full_attention"], not a list of 3 names)");
  expect_llama_refused("qwen3",
                       {{"layer_types", {"full_attention", "full_attention", "sliding_attention"}}},
                       R"(layer_types is ["full_attention","full_attention","sliding_attention"], )"
                       "not without a sliding window");
}

TEST(LlamaConfig, RefusesWhatItCannotComputeWithKeyAndValue) {
  expect_llama_refused("llama", {{"hidden_act", "gelu"}}, R"(hidden_act is "gelu", not "silu")");
  expect_llama_refused("qwen2", {{"num_key_value_heads", nullptr}},
                       "num_key_value_heads is missing, not a whole number from 1 to 16777216");
  expect_llama_refused("llama", {{"num_key_value_heads", 3}},
                       "4 attention heads are not a multiple of 3 key-value heads");
  expect_llama_refused("llama", {{"num_attention_heads", 7}},
                       "hidden_size is 64, not a multiple of num_attention_heads, which is 7");
  expect_llama_refused("llama", {{"head_dim", 15}},
                       "heads of 15 numbers cannot be turned: not even");
  expect_llama_refused("llama", {{"rms_norm_eps", 0}},
                       "rms_norm_eps is 0, not a number greater than 0");
  expect_llama_refused("llama", {{"attention_dropout", 1}},
                       "attention_dropout is 1, not a number from 0 up to 1");
  expect_llama_refused("llama", {{"architectures", {"LlamaForSequenceClassification"}}},
                       R"(architectures is ["LlamaForSequenceClassification"], )"
                       R"(not ["LlamaForCausalLM"] or ["LlamaModel"])");
  expect_llama_refused("llama", {{"quantization_config", {{"bits", 4}}}},
                       R"(quantization_config is {"bits":4}, not null)");
  expect_llama_refused("llama", {{"partial_rotary_factor", 0.5}},
                       "partial_rotary_factor is 0.5, not 1.0");
}

TEST(LlamaConfig, ReadsEveryVariantOfTheRotaryEmbedding) {
  EXPECT_EQ(llama_with(small_llama("llama")).rotary, RotaryConfig{});
  EXPECT_EQ(scaled_llama({{"type", "linear"}, {"factor", 2}}).rotary,
            (RotaryConfig{.scaling = RotaryScaling::Linear, .factor = 2}));
  EXPECT_EQ(scaled_llama({{"rope_type", "dynamic"}, {"factor", 2}}).rotary.scaling,
            RotaryScaling::Dynamic);
  const RotaryConfig yarn =
      scaled_llama({{"rope_type", "yarn"}, {"original_max_position_embeddings", 32}}).rotary;
  EXPECT_EQ(yarn.factor, 3);
  EXPECT_EQ(yarn.beta_fast, 32);
  const RotaryConfig of_version5 =
      llama_with(small_llama("llama"),
                 {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}})
          .rotary;
  EXPECT_EQ(of_version5, RotaryConfig{.theta = 5e5});
  const Json eight = {1, 1, 1, 1, 2, 2, 2, 2};
  EXPECT_EQ(
      scaled_llama({{"rope_type", "longrope"}, {"short_factor", eight}, {"long_factor", eight}})
          .rotary.long_factor.size(),
      8u);
}

TEST(LlamaConfig, RefusesOtherVariantsOfTheRotaryEmbedding) {
  expect_rope_refused({{"rope_type", "mrope"}},
                      R"(rope_type is "mrope", not one of "default", "linear", "dynamic", "yarn", )"
                      R"("longrope", "llama3")");
  expect_rope_refused({{"type", "su"}, {"factor", 2}},
                      R"(type is "su", not one of "default", "linear", "dynamic", "yarn", )"
                      R"("longrope", "llama3")");
  expect_rope_refused({{"rope_type", "linear"}}, "factor is missing, not a number greater than 0");
  expect_rope_refused({{"rope_type", "longrope"}, {"short_factor", {1, 2}}},
                      "short_factor is [1,2], not a list of 8 numbers greater than 0");
  expect_rope_refused(
      {{"rope_type", "llama3"}, {"factor", 2}, {"low_freq_factor", 4}, {"high_freq_factor", 4}},
      "high_freq_factor is 4, not greater than low_freq_factor");
  expect_rope_refused({{"full_attention", {{"rope_type", "yarn"}}}},
                      R"(full_attention is {"rope_type":"yarn"}, )"
                      "not supported: one rotary embedding serves all layers");
}

TEST(LlamaConfig, WhatIsWrittenIsReadBack) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    SCOPED_TRACE(type);
    Json config = small_llama(type);
    config["rope_scaling"] = {{"rope_type", "yarn"},
                              {"factor", 3.5},
                              {"attention_factor", 1.25},
                              {"original_max_position_embeddings", 32}};
    config["use_sliding_window"] = true;
    config["sliding_window"] = 8;
    config["max_window_layers"] = 1;
    config["eos_token_id"] = 7;
    const LlamaConfig first = llama_from_hugging_face(config, "test");
    const Json written = parse_json(llama_to_hugging_face(first).dump(), "test");
    EXPECT_EQ(written.at("eos_token_id"), 7);
    const LlamaConfig back = llama_from_hugging_face(written, "test");
    EXPECT_EQ(llama_to_hugging_face(back), written);
    EXPECT_EQ(back.family, first.family);
    EXPECT_EQ(back.rotary, first.rotary);
    EXPECT_EQ(back.qkv_bias, first.qkv_bias);
    EXPECT_EQ(back.qk_norm, first.qk_norm);
    for (std::int64_t layer = 0; layer < 3; ++layer)
      EXPECT_EQ(back.window_of(layer), first.window_of(layer));
  }
}

TEST(ModelConfig, ConfigJsonSaysWhichModelItIs) {
  EXPECT_TRUE(std::holds_alternative<LlamaConfig>(model_from_hugging_face(llama_hub(), "test")));
  const Json gpt = gpt_to_hugging_face(gpt_preset("nano"));
  EXPECT_TRUE(std::holds_alternative<GptConfig>(model_from_hugging_face(gpt, "test")));
  EXPECT_THAT(test::error_of([] {
                model_from_hugging_face({{"model_type", "gemma2"}}, "m/config.json");
              }),
              test::Fails(ErrorCode::InvalidArgument,
                          testing::StrEq(R"(m/config.json: model_type is "gemma2", not one of )"
                                         R"("gpt2", "llama", "mistral", "qwen2" and "qwen3")")));
}

TEST(ModelConfig, ContextsAreThoseThatTheModelCanHave) {
  const ModelConfig llama = llama_from_hugging_face(llama_hub(), "test");
  EXPECT_EQ(default_context(llama), 1024);
  EXPECT_NO_THROW(require_context(llama, 131072));
  EXPECT_THROW(require_context(llama, 131073), Error);
  EXPECT_NO_THROW(require_context(scaled_llama({{"rope_type", "dynamic"}, {"factor", 2}}), 97));
  EXPECT_EQ(default_context(gpt_preset("gpt2")), 1024);
  EXPECT_THROW(require_context(gpt_preset("gpt2"), 1025), Error);
  for (const char* name : {"nano", "gpt2", "llama-nano", "llama-tiny", "llama-small"})
    EXPECT_TRUE(is_model_preset(name)) << name;
  EXPECT_THROW(model_preset("huge"), Error);
}

}  // namespace
}  // namespace unishard::trainer
