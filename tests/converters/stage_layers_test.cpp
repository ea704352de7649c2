// Which layers DeepSpeed gives to which stage of a pipeline.
#include "formats/deepspeed/stage_layers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace unishard::converters::deepspeed_sink {
namespace {

using testing::ElementsAre;
using Elements = std::vector<std::uint64_t>;

/// The expected parts are those of partition_balanced() of DeepSpeed 0.19.8.
TEST(BalancedParts, AreThoseOfDeepSpeed) {
  const Elements model = {420, 0, 1160, 1160, 1160, 24, 377};
  EXPECT_THAT(balanced_parts(model, 1), ElementsAre(0, 7));
  EXPECT_THAT(balanced_parts(model, 2), ElementsAre(0, 3, 7));
  EXPECT_THAT(balanced_parts(model, 3), ElementsAre(0, 3, 4, 7));
  EXPECT_THAT(balanced_parts(model, 4), ElementsAre(0, 2, 3, 4, 7));
  EXPECT_THAT(balanced_parts({1, 1, 1, 1, 1}, 3), ElementsAre(0, 2, 4, 5));
  EXPECT_THAT(balanced_parts({9, 1, 1, 1, 9, 0, 0}, 3), ElementsAre(0, 1, 4, 7));
  EXPECT_THAT(balanced_parts({0, 0, 5, 0, 0, 5, 0}, 2), ElementsAre(0, 5, 7));
  EXPECT_THAT(balanced_parts({3, 3}, 2), ElementsAre(0, 1, 2));
  EXPECT_THAT(balanced_parts({7, 1, 2, 9, 4, 4, 1, 8, 2}, 4), ElementsAre(0, 3, 4, 7, 9));
}

TEST(LayerName, IsOfALayerOrOfATiedModule) {
  const auto layer = split_layer_name("12.mlp.up.weight");
  ASSERT_TRUE(layer);
  EXPECT_EQ(layer->layer, 12u);
  EXPECT_EQ(layer->local, "mlp.up.weight");
  EXPECT_TRUE(layer->tied_key.empty());
  const auto tied = split_layer_name("tied_modules.embed.tok.weight");
  ASSERT_TRUE(tied);
  EXPECT_EQ(tied->tied_key, "embed");
  EXPECT_EQ(tied->local, "tok.weight");
  for (const char* name : {"", "12", "12.", ".weight", "x.weight", "01.weight", "-1.weight",
                           "1x.weight", "99999.weight", "99999999999999999999.weight",
                           "tied_modules.embed", "tied_modules..weight"})
    EXPECT_FALSE(split_layer_name(name)) << name;
}

// PipelineModule makes a tied module where the first layer of its stage uses it.
TEST(StageLayers, TiedModulesOfAStageAreInTheOrderOfTheirUse) {
  SinkModel model;
  for (const char* name : {"tied_modules.a.w", "tied_modules.m.w", "2.w", "3.w", "5.w"})
    model.module.push_back({.fqn = name});
  const ParallelRanks ranks{.parts = {0, 3, 7}, .tied = {{"a", {0, 6}}, {"m", {1, 4}}}};
  const StageLayers layers(model, ranks, [](const SinkParameter&) { return std::uint64_t{1}; });
  EXPECT_LT(layers.place(0, "tied_modules.a.w"), layers.place(0, "tied_modules.m.w"));
  EXPECT_LT(layers.place(1, "tied_modules.m.w"), layers.place(1, "tied_modules.a.w"));
  EXPECT_LT(layers.place(1, "tied_modules.a.w"), layers.place(1, "3.w"));
  EXPECT_LT(layers.place(1, "3.w"), layers.place(1, "5.w"));
}

}  // namespace
}  // namespace unishard::converters::deepspeed_sink
