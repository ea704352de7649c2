#include "formats/dcp/attribution.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unishard::converters::dcp {
namespace {

/// Adds a tensor of the dict `root`, or of the top level without one. Its name there may have dots.
void add_tensor(StateDict& state, const std::string& root, const std::string& name, Shape shape) {
  TensorEntry entry;
  entry.key = root.empty() ? name : root + "." + name;
  if (!root.empty()) entry.path.push_back({root, false});
  entry.path.push_back({name, false});
  entry.shape = std::move(shape);
  state.tensors.push_back(std::move(entry));
}

OptimizerClaims claims_of(const std::string& prefix,
                          std::map<std::string, std::optional<Shape>> parameters) {
  Json names = Json::array();
  for (const auto& [name, shape] : parameters) names.push_back(name);
  return {.prefix = prefix, .groups = {{{"params", names}}}, .parameters = std::move(parameters)};
}

std::vector<std::size_t> all_of(const StateDict& state) {
  std::vector<std::size_t> all(state.tensors.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

std::vector<std::string> names_of(const Attribution& found) {
  std::vector<std::string> names;
  for (const auto& parameter : found.model) names.push_back(parameter.fqn);
  return names;
}

TEST(Attribution, ModelIsWholeWhereTheOptimizerTrainsAPart) {
  for (const char* root : {"model", ""}) {
    StateDict state;
    for (const char* name : {"model.0.w", "model.1.w", "lm_head.w"})
      add_tensor(state, root, name, {2});
    const Attribution found = attribute(
        state, all_of(state), {claims_of("optim.", {{"0.w", Shape{2}}, {"1.w", Shape{2}}})});
    EXPECT_THAT(names_of(found), testing::ElementsAre("model.0.w", "model.1.w", "lm_head.w"));
    EXPECT_EQ(found.fqn_of(0, "0.w"), "model.0.w");
    EXPECT_THAT(found.extras, testing::IsEmpty());
    EXPECT_THAT(found.remarks, testing::IsEmpty());
  }
}

TEST(Attribution, WrappersOfMostNamesAreRemoved) {
  StateDict state;
  for (const char* name : {"_orig_mod.0.w", "_orig_mod.1.w", "_orig_mod.2.w", "head.w"})
    add_tensor(state, "model", name, {2});
  const Attribution found = attribute(
      state, all_of(state),
      {claims_of("optim.", {{"0.w", Shape{2}}, {"1.w", {}}, {"2.w", {}}, {"head.w", {}}})});
  EXPECT_THAT(names_of(found), testing::ElementsAre("0.w", "1.w", "2.w", "head.w"));
  EXPECT_THAT(found.extras, testing::IsEmpty());
}

TEST(Attribution, ReplicaOfAPartKeepsItsNamesAndHasItsStates) {
  StateDict state;
  for (const char* name : {"module.0.w", "module.1.w", "head.w"})
    add_tensor(state, "model", name, {2});
  const Attribution found =
      attribute(state, all_of(state),
                {claims_of("optim.", {{"0.w", Shape{2}}, {"1.w", {}}, {"head.w", {}}})});
  EXPECT_THAT(names_of(found), testing::ElementsAre("module.0.w", "module.1.w", "head.w"));
  EXPECT_EQ(found.fqn_of(0, "1.w"), "module.1.w");
  EXPECT_EQ(found.fqn_of(0, "head.w"), "head.w");
}

TEST(Attribution, OptimizersOfPartsGetTheirOwnParts) {
  StateDict state;
  for (const char* name : {"enc.0.w", "dec.0.w", "head.w"}) add_tensor(state, "model", name, {2});
  const OptimizerClaims decoder = claims_of("opt_dec.", {{"0.w", Shape{2}}}),
                        encoder = claims_of("opt_enc.", {{"0.w", Shape{2}}});
  const Attribution found = attribute(state, all_of(state), {decoder, encoder});
  EXPECT_EQ(found.fqn_of(0, "0.w"), "dec.0.w");
  EXPECT_EQ(found.fqn_of(1, "0.w"), "enc.0.w");
  EXPECT_THAT(found.undecided, testing::IsEmpty());
}

TEST(Attribution, ShapesTellThePartOfAnOptimizer) {
  StateDict state;
  add_tensor(state, "model", "enc.w", {2});
  add_tensor(state, "model", "dec.w", {3});
  const Attribution found = attribute(state, all_of(state), {claims_of("a.", {{"w", Shape{3}}})});
  EXPECT_EQ(found.fqn_of(0, "w"), "dec.w");
}

TEST(Attribution, NamesThatFitTwoPartsStayAndAreSaid) {
  StateDict state;
  add_tensor(state, "model", "enc.w", {2});
  add_tensor(state, "model", "dec.w", {2});
  const OptimizerClaims one = claims_of("a.", {{"w", Shape{2}}});
  const Attribution found = attribute(state, all_of(state), {one});
  EXPECT_EQ(found.fqn_of(0, "w"), "w");
  EXPECT_THAT(names_of(found), testing::ElementsAre("enc.w", "dec.w"));
  EXPECT_THAT(found.remarks_on_states,
              testing::ElementsAre(testing::HasSubstr("fit several parts of the model")));
  const Attribution two =
      attribute(state, all_of(state), {one, claims_of("b.", {{"w", Shape{2}}})});
  EXPECT_THAT(two.undecided, testing::Not(testing::IsEmpty()));
}

TEST(Attribution, ModelThatLacksAWeightComesBeforeACopyWithAll) {
  for (const char* copy : {"ema", "best", "model_ema", "pretrained", "state_dict"}) {
    StateDict state;
    for (const char* name : {"0.w", "1.w"}) add_tensor(state, "model", name, {2});
    for (const char* name : {"0.w", "1.w", "2.w"}) add_tensor(state, copy, name, {2});
    const Attribution found = attribute(
        state, all_of(state), {claims_of("optim.", {{"0.w", Shape{2}}, {"1.w", {}}, {"2.w", {}}})});
    EXPECT_THAT(found.model_prefixes, testing::ElementsAre("model.")) << copy;
  }
}

TEST(Attribution, CopyThatReplacesAModelIsSaid) {
  StateDict state;
  add_tensor(state, "model", "0.w", {2});
  for (const char* name : {"0.w", "1.w", "2.w"}) add_tensor(state, "ema", name, {2});
  const Attribution found = attribute(
      state, all_of(state), {claims_of("optim.", {{"0.w", Shape{2}}, {"1.w", {}}, {"2.w", {}}})});
  EXPECT_THAT(found.model_prefixes, testing::ElementsAre("ema."));
  EXPECT_THAT(found.remarks, testing::ElementsAre(testing::HasSubstr("is taken for the model")));
}

TEST(Attribution, GroupsNameTheParametersOfAnOptimizerWithoutStates) {
  StateDict state;
  for (const char* name : {"w", "b"}) {
    TensorEntry entry;
    entry.key = std::string("app.model.") + name;
    entry.path = {{"app", false}, {"model", false}, {name, false}};
    entry.shape = {2};
    state.tensors.push_back(std::move(entry));
  }
  const OptimizerClaims sgd = {
      .prefix = "app.optim.", .groups = {{{"params", {"w", "b"}}}}, .parameters = {}};
  const Attribution found = attribute(state, {0, 1}, {sgd});
  EXPECT_THAT(found.model_prefixes, testing::ElementsAre("app.model."));
  ASSERT_EQ(found.model.size(), 2u);
  EXPECT_EQ(found.model[0].fqn, "w");
}

/// A model with a weight, and a parameter that is called as batch norm calls a buffer.
StateDict with_statistic() {
  StateDict state;
  add_tensor(state, "model", "w", {2});
  add_tensor(state, "model", "norm.running_mean", {3});
  return state;
}

TEST(Attribution, StatisticThatTheOptimizerNamesIsTrained) {
  const StateDict state = with_statistic();
  const OptimizerClaims optimizer = {
      .prefix = "optim.",
      .groups = {{{"params", {0}}, {"param_names", {"norm.running_mean"}}}},
      .parameters = {{"0", Shape{3}}}};
  EXPECT_EQ(attribute(state, all_of(state), {optimizer}).fqn_of(0, "0"), "norm.running_mean");
}

TEST(Attribution, StatisticsAreTrainedWhereTheCountsTellIt) {
  StateDict state = with_statistic();
  const OptimizerClaims optimizer = {.prefix = "optim.",
                                     .groups = {{{"params", {0, 1}}}},
                                     .parameters = {{"0", Shape{2}}, {"1", Shape{3}}}};
  const Attribution found = attribute(state, all_of(state), {optimizer});
  EXPECT_TRUE(found.trains_statistics);
  EXPECT_EQ(found.fqn_of(0, "1"), "norm.running_mean");

  add_tensor(state, "model", "norm.num_batches_tracked", {});
  state.tensors.back().dtype = DType::Int64;
  const Attribution counting = attribute(state, all_of(state), {optimizer});
  EXPECT_FALSE(counting.trains_statistics) << "of a batch norm";
  EXPECT_EQ(counting.fqn_of(0, "1"), "state.1");
}

}  // namespace
}  // namespace unishard::converters::dcp
