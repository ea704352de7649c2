// Names of Hugging Face models for the numbered layers of a pipeline.
#include "workflows/name_layouts.hpp"

#include "unishard/format/error.hpp"

#include "expect.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace unishard::tools {
namespace {

using testing::ElementsAre;

/// A parameter of a pipeline: its name and its number of dimensions.
using Named = std::pair<std::string, std::size_t>;

Catalog catalog_of(const std::vector<Named>& parameters) {
  Catalog catalog;
  for (const auto& [fqn, dimensions] : parameters) {
    for (const char* state : {"fp32", "exp_avg"}) {
      TensorInfo tensor;
      tensor.fqn = fqn;
      tensor.state = state;
      tensor.dtype = DType::Float32;
      tensor.shape.assign(dimensions, 2);
      catalog.tensors.push_back(tensor);
    }
  }
  return catalog;
}

std::vector<std::string> renamed(const std::string& layout, const std::vector<Named>& parameters) {
  Renamer rename(layout_rules(layout, catalog_of(parameters)));
  std::vector<std::string> names;
  for (const auto& [fqn, dimensions] : parameters) names.push_back(rename(fqn));
  return names;
}

TEST(NameLayouts, NeoxCountsTheBlocks) {
  EXPECT_THAT(renamed("neox", {{"0.word_embeddings.weight", 2},
                               {"2.input_layernorm.bias", 1},
                               {"2.attention.query_key_value.weight", 2},
                               {"3.input_layernorm.bias", 1},
                               {"3.attention.query_key_value.weight", 2},
                               {"4.input_layernorm.bias", 1},
                               {"4.attention.query_key_value.weight", 2},
                               {"6.norm.weight", 1},
                               {"6.norm.bias", 1},
                               {"7.final_linear.weight", 2}}),
              ElementsAre("gpt_neox.embed_in.weight", "gpt_neox.layers.0.input_layernorm.bias",
                          "gpt_neox.layers.0.attention.query_key_value.weight",
                          "gpt_neox.layers.1.input_layernorm.bias",
                          "gpt_neox.layers.1.attention.query_key_value.weight",
                          "gpt_neox.layers.2.input_layernorm.bias",
                          "gpt_neox.layers.2.attention.query_key_value.weight",
                          "gpt_neox.final_layer_norm.weight", "gpt_neox.final_layer_norm.bias",
                          "embed_out.weight"));
}

TEST(NameLayouts, BloomHasItsEmbeddingsInATiedModule) {
  EXPECT_THAT(renamed("bloom", {{"tied_modules.embed.word_embeddings.weight", 2},
                                {"tied_modules.embed.word_embeddings.norm.weight", 1},
                                {"3.self_attention.dense.weight", 2},
                                {"4.self_attention.dense.weight", 2},
                                {"6.weight", 1},
                                {"6.bias", 1}}),
              ElementsAre("transformer.word_embeddings.weight",
                          "transformer.word_embeddings_layernorm.weight",
                          "transformer.h.0.self_attention.dense.weight",
                          "transformer.h.1.self_attention.dense.weight", "transformer.ln_f.weight",
                          "transformer.ln_f.bias"));
}

TEST(NameLayouts, LlamaTellsLayersOfOneWeightByTheirPlaces) {
  EXPECT_THAT(
      renamed("llama-pipe", {{"0.weight", 2},
                             {"1.self_attn.q_proj.weight", 2},
                             {"2.self_attn.q_proj.weight", 2},
                             {"3.weight", 1},
                             {"4.weight", 2}}),
      ElementsAre("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                  "model.layers.1.self_attn.q_proj.weight", "model.norm.weight", "lm_head.weight"));
}

TEST(NameLayouts, RefuseWhatTheyHaveNoPlaceFor) {
  const auto error_for = [](const std::string& layout, const std::string& fqn) {
    return test::error_of([&] {
      renamed(layout, {{"0.word_embeddings.weight", 2}, {"2.attention.dense.bias", 1}, {fqn, 1}});
    });
  };
  EXPECT_THAT(error_for("neox", "3.lora.weight"),
              test::Fails(ErrorCode::Mismatch, {"--layout neox", "3.lora.weight"}));
  EXPECT_THAT(error_for("neox", "model.embed.weight"),
              test::Fails(ErrorCode::Mismatch, {"model.embed.weight"}));
  EXPECT_THAT(error_for("neox", "0.norm.weight"),  // a norm before the blocks
              test::Fails(ErrorCode::Mismatch, {"0.norm.weight"}));
  EXPECT_THAT(error_for("gpt9", "3.weight"), test::Fails(ErrorCode::InvalidArgument, {"gpt9"}));
}

/// A frozen block that was not saved: the names of all behind it would be those of others.
TEST(NameLayouts, ABlockThatIsMissingIsRefused) {
  const auto error_with = [](const std::string& fqn) {
    return test::error_of([&] {
      renamed("llama-pipe", {{"0.weight", 2}, {fqn, 2}, {"3.self_attn.q_proj.weight", 2}});
    });
  };
  EXPECT_THAT(error_with("1.mlp.up_proj.weight"),
              test::Fails(ErrorCode::Mismatch, {"layer 2 is no block", "layer 3 is one"}));
  EXPECT_THAT(error_with("2.mlp.up_proj.weight"),
              test::Fails(ErrorCode::Mismatch, {"layer 1 is no block", "layer 2 is one"}));
}

/// Attention and MLP as layers of their own are no blocks.
TEST(NameLayouts, LayersWithOtherParametersAreRefused) {
  EXPECT_THAT(
      test::error_of([] {
        renamed("llama-pipe",
                {{"0.weight", 2}, {"1.self_attn.q_proj.weight", 2}, {"2.mlp.up_proj.weight", 2}});
      }),
      test::Fails(ErrorCode::Mismatch, {"layers 1 and 2", "same parameters"}));
}

}  // namespace
}  // namespace unishard::tools
