#include "formats/dcp/unnamed_weights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unishard::converters::dcp {
namespace {

using testing::HasSubstr;

TEST(UnnamedWeights, AreLostWhereTheOptimizerHasMoreThanTheModel) {
  const UnnamedWeights found =
      find_unnamed_weights({.numbered = {{4}, {4}, {8, 4}}, .model = {{8, 4}, {4}}});
  ASSERT_TRUE(found.loss);
  EXPECT_EQ(found.loss->role, Role::Weight);
  EXPECT_THAT(found.loss->why, HasSubstr("states of 3 parameters, and the model has 2"));
  EXPECT_THAT(found.loss->why, HasSubstr("none is left for (4)"));
  EXPECT_FALSE(found.remark);
}

TEST(UnnamedWeights, AreNoneWhereTheModelHasAsManyTensors) {
  for (const std::vector<Shape>& model :
       {std::vector<Shape>{{4}, {4}}, {{4}, {4}, {5}}, {{9}, {9}}, {}}) {
    const UnnamedWeights found = find_unnamed_weights({.numbered = {{4}, {4}}, .model = model});
    EXPECT_FALSE(found.loss || found.remark);
  }
}

TEST(UnnamedWeights, AreInDoubtWhereTheOptimizerMayTrainMore) {
  const auto is_doubt = [](const TrainedShapes& shapes) {
    const UnnamedWeights found = find_unnamed_weights(shapes);
    return found.remark && !found.loss;
  };
  EXPECT_TRUE(is_doubt({.numbered = {{4}, {3}}, .model = {{4}}, .may_train_others = true}));
  EXPECT_TRUE(is_doubt({.numbered = {{4}, {3}}, .model = {{4}}, .elsewhere = {{2}, {3}}}));
  EXPECT_TRUE(is_doubt({.numbered = {{4}, {}}, .model = {{4}}})) << "a temperature of the loss";
  EXPECT_TRUE(is_doubt({.numbered = {{4, 4}, {2, 4}, {2, 4}}, .model = {{8, 4}, {4}}}))
      << "the file holds the three as one";
}

}  // namespace
}  // namespace unishard::converters::dcp
