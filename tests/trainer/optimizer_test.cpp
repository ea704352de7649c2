// The rules against double-precision formulas, and the promise that bits do not depend on where a
// shard begins. Comparison with torch.optim is in engine_test.cpp.
#include "unishard/trainer/optimizer.hpp"

#include "unishard/format/error.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

namespace unishard::trainer {
namespace {

struct Trained {
  std::vector<float> weights;
  std::vector<std::vector<float>> states;
};

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

/// Three steps on `count` weights that are updated in pieces of `piece`.
Trained run(std::string_view name, const Hyper& hyper, std::size_t count, std::size_t piece) {
  const auto optimizer = make_optimizer(name, hyper);
  Trained result{random_floats(count, 1), {}};
  result.states.assign(optimizer->state_names().size(), std::vector<float>(count));
  for (unsigned step = 1; step <= 3; ++step) {
    const std::vector<float> gradients = random_floats(count, 10 + step);
    for (std::size_t begin = 0; begin < count; begin += piece) {
      const std::size_t size = std::min(piece, count - begin);
      std::vector<std::span<float>> states;
      for (auto& state : result.states) states.push_back(std::span(state).subspan(begin, size));
      optimizer->update(hyper, step, 0.5F, std::span(result.weights).subspan(begin, size),
                        std::span(gradients).subspan(begin, size), states);
    }
  }
  return result;
}

constexpr Hyper kHyper{
    .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1, .momentum = 0.9};

class EveryOptimizer : public testing::TestWithParam<std::string_view> {};

TEST_P(EveryOptimizer, GivesTheSameBitsForEveryCut) {
  const Trained whole = run(GetParam(), kHyper, 1037, 1037);
  for (const std::size_t piece : {1u, 3u, 16u, 100u, 1024u}) {
    const Trained cut = run(GetParam(), kHyper, 1037, piece);
    EXPECT_EQ(cut.weights, whole.weights) << piece;
    EXPECT_EQ(cut.states, whole.states) << piece;
  }
}

TEST_P(EveryOptimizer, LeavesPaddingAtZero) {
  const auto optimizer = make_optimizer(GetParam(), kHyper);
  std::vector<float> weights(5), gradients(5);
  std::vector<std::vector<float>> states(optimizer->state_names().size(), std::vector<float>(5));
  std::vector<std::span<float>> spans(states.begin(), states.end());
  optimizer->update(kHyper, 1, 1, weights, gradients, spans);
  EXPECT_EQ(weights, std::vector<float>(5));
}

INSTANTIATE_TEST_SUITE_P(All, EveryOptimizer,
                         testing::Values("Adam", "AdamW", "SGD", "Lion", "Adagrad"));

TEST(Optimizer, LionMatchesItsFormula) {
  const Trained result = run("lion", kHyper, 64, 64);
  std::vector<double> weights, averages(64);
  for (const float value : random_floats(64, 1)) weights.push_back(static_cast<double>(value));
  for (unsigned step = 1; step <= 3; ++step) {
    const auto gradients = random_floats(64, 10 + step);
    for (std::size_t i = 0; i < 64; ++i) {
      const double gradient = 0.5 * static_cast<double>(gradients[i]);
      const double direction = 0.9 * averages[i] + 0.1 * gradient;
      weights[i] = weights[i] * (1 - 0.01 * 0.1) - 0.01 * (direction > 0 ? 1 : -1);
      averages[i] = 0.95 * averages[i] + 0.05 * gradient;
    }
  }
  for (std::size_t i = 0; i < 64; ++i)
    EXPECT_NEAR(static_cast<double>(result.weights[i]), weights[i], 1e-6);
}

TEST(Optimizer, StatesAreNamedAsInTorch) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(make_optimizer("AdamW", kHyper)->state_names(), (Names{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(make_optimizer("SGD", kHyper)->state_names(), Names{"momentum_buffer"});
  EXPECT_EQ(make_optimizer("SGD", {})->state_names(), Names{});
  EXPECT_EQ(make_optimizer("Lion", kHyper)->state_names(), Names{"exp_avg"});
  EXPECT_EQ(make_optimizer("Adagrad", kHyper)->state_names(), Names{"sum"});
  EXPECT_THROW(make_optimizer("Adafactor", kHyper), Error);
}

TEST(Optimizer, AdamWithoutBiasCorrection) {
  Hyper hyper{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 0, .bias_correction = false};
  std::vector<float> weight{1}, gradient{2}, first{0}, second{0};
  const std::array<std::span<float>, 2> states{first, second};
  make_optimizer("Adam", hyper)->update(hyper, 1, 1, weight, gradient, states);
  // m = 0.2, v = 0.04: the step is 0.1 * 0.2 / 0.2.
  EXPECT_NEAR(weight[0], 0.9, 1e-6);
}

TEST(Optimizer, LambUpdatesItsMomentsThenTheWeights) {
  Hyper hyper{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 0.5, .weight_decay = 0.25};
  std::vector<float> weight{4}, gradient{2}, first{0}, second{0};
  const std::array<std::span<float>, 2> states{first, second};
  const auto moments = make_optimizer("lamb", hyper);
  EXPECT_EQ(moments->state_names(), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  moments->update(hyper, 1, 0.5F, weight, gradient, states);
  EXPECT_EQ(weight[0], 4);
  EXPECT_NEAR(first[0], 0.1, 1e-7);
  EXPECT_NEAR(second[0], 0.01, 1e-8);
  // The update is 0.1 / (0.1 + 0.5) + 0.25 * 4; both corrections are sqrt(0.01) / 0.1 = 1.
  const double update = 0.1 / 0.6 + 1;
  EXPECT_NEAR(lamb_ratio(hyper, 4, update), 4 / update, 1e-12);
  lamb_step().update(hyper, 1, 1, weight, gradient, states);
  EXPECT_NEAR(weight[0], 4 - 0.1 * update, 1e-6);
}

TEST(Optimizer, MuonUpdatesItsMomentumThenTheWeights) {
  const Hyper hyper{.lr = 0.1, .weight_decay = 0.5, .momentum = 0.75};
  std::vector<float> weight{4}, gradient{2}, momentum{8};
  const std::array<std::span<float>, 1> states{momentum};
  const auto muon = make_optimizer("muon", hyper);
  EXPECT_EQ(muon->state_names(), (std::vector<std::string>{"momentum_buffer"}));
  std::vector<float> blend{0};
  muon->update(hyper, 1, 0.5F, blend, gradient, states);
  EXPECT_EQ(momentum[0], 8 * 0.75F + 1 * 0.25F);
  EXPECT_EQ(blend[0], 1 * 0.25F + momentum[0] * 0.75F);
  muon_step().update(hyper, 1, 0.5F, weight, gradient, states);
  EXPECT_FLOAT_EQ(weight[0], 4 * (1 - 0.1F * 0.5F) - 0.1F * 1);
  EXPECT_EQ(momentum[0], 6.25F);
}

TEST(Optimizer, LambsRatioIsBounded) {
  const Hyper hyper{.max_coeff = 0.3, .min_coeff = 0.01};
  EXPECT_EQ(lamb_ratio(hyper, 5, 1), 0.3);
  EXPECT_EQ(lamb_ratio(hyper, 1, 5000), 0.01);
  EXPECT_EQ(lamb_ratio(hyper, 0, 1), 1);
  EXPECT_EQ(lamb_ratio(hyper, 1, 0), 1);
}

}  // namespace
}  // namespace unishard::trainer
