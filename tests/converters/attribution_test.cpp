#include "formats/dcp/attribution.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unishard::converters::dcp {
namespace {

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

}  // namespace
}  // namespace unishard::converters::dcp
