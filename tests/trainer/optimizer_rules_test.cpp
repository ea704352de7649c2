// The rules against the plain loops that define them, to the bit: every combination of odd values,
// every vector width of this processor, every cut.
#include "optimizer/host_update.hpp"
#include "optimizer/rules.hpp"
#include "reference_updates.hpp"
#include "update_case.hpp"

#include <gtest/gtest.h>

namespace unishard::trainer {
namespace {

using test::differences;
using test::UpdateCase;
using test::UpdateValues;

constexpr float kScale = 0.37F;

class OptimizerRule : public testing::TestWithParam<UpdateCase> {
 protected:
  std::unique_ptr<Optimizer> optimizer_ = make_optimizer(GetParam().optimizer, GetParam().hyper);
  const UpdateValues before_ = test::update_values(10'007);

  UpdateValues reference(std::int64_t step) const {
    UpdateValues values = before_;
    test::reference_update(*optimizer_, GetParam().hyper, step, kScale, values.arrays[0],
                           values.arrays[1], values.states(*optimizer_));
    return values;
  }
  detail::Rule rule(std::int64_t step) const {
    return detail::rule_for(*optimizer_, GetParam().hyper, step, kScale);
  }
};

TEST_P(OptimizerRule, HasTheBitsOfItsPlainLoopInEveryVectorWidth) {
  for (const std::int64_t step : {1, 2, 1000}) {
    const UpdateValues expected = reference(step);
    ASSERT_GT(differences(expected, before_), 10'000u);
    for (const detail::VectorWidth width : detail::vector_widths()) {
      UpdateValues values = before_;
      detail::update_on_host(rule(step), values.all(*optimizer_), width);
      EXPECT_EQ(differences(values, expected), 0u) << static_cast<int>(width) << " step " << step;
    }
  }
}

TEST_P(OptimizerRule, HasTheSameBitsForEveryCut) {
  const UpdateValues expected = reference(3);
  for (const detail::VectorWidth width : detail::vector_widths()) {
    for (const std::size_t size : {1u, 7u, 16u, 33u, 4096u}) {
      UpdateValues values = before_;
      const detail::UpdateArrays all = values.all(*optimizer_);
      for (std::size_t begin = 0; begin < all.count; begin += size) {
        detail::update_on_host(rule(3), all.part(begin, std::min(size, all.count - begin)), width);
      }
      EXPECT_EQ(differences(values, expected), 0u) << static_cast<int>(width) << " size " << size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerRule, testing::ValuesIn(test::update_cases()),
                         [](const auto& each) { return each.param.title; });

}  // namespace
}  // namespace unishard::trainer
