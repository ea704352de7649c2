#include "core/adam_settings.hpp"

#include <gtest/gtest.h>

namespace unishard::converters {
namespace {

Catalog catalog_of(const std::vector<std::pair<const char*, const char*>>& states) {
  Catalog catalog;
  for (const auto& [fqn, state] : states) {
    TensorInfo tensor;
    tensor.fqn = fqn;
    tensor.state = state;
    catalog.tensors.push_back(std::move(tensor));
  }
  return catalog;
}

bool is_adam(const Catalog& catalog, const std::vector<std::string>& fqns) {
  return AdamGroups(catalog).is_adam(fqns);
}

TEST(AdamGroups, AreThoseWithBothMomentsAndNoStateOfTheirOwn) {
  const Catalog catalog = catalog_of({{"a", "exp_avg"},
                                      {"a", "exp_avg_sq"},
                                      {"a", "fp32"},
                                      {"b", "exp_avg"},
                                      {"b", "exp_avg_sq"},
                                      {"b", "max_exp_avg_sq"},
                                      {"lion", "exp_avg"},
                                      {"p", "exp_avg"},
                                      {"p", "exp_avg_sq"},
                                      {"p", "p0"}});
  EXPECT_TRUE(is_adam(catalog, {"a", "b"}));
  EXPECT_TRUE(is_adam(catalog, {"frozen", "a"}));
  EXPECT_FALSE(is_adam(catalog, {"lion"}));
  EXPECT_FALSE(is_adam(catalog, {"p"}));
  EXPECT_FALSE(is_adam(catalog, {"a", "lion"}));
}

TEST(AdamGroups, WithoutStatesAreLikeTheRest) {
  EXPECT_TRUE(is_adam(catalog_of({{"a", "exp_avg"}, {"a", "exp_avg_sq"}}), {"frozen"}));
  EXPECT_FALSE(is_adam(catalog_of({{"a", "exp_avg"}}), {"frozen"}));
  EXPECT_FALSE(is_adam(catalog_of({{"a", "weights"}}), {"a"}));
}

}  // namespace
}  // namespace unishard::converters
