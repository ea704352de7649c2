// The rules against double-precision formulas, and the promise that bits do not depend on where a
// shard begins. Comparison with torch.optim is in engine_test.cpp.
#include "unishard/trainer/optimizer.hpp"

#include "unishard/format/error.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace unishard::trainer
