// The engine against plain autograd, and against itself on other world sizes and stages.
#include "unishard/trainer/engine.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/dropout.hpp"

#include "small_model.hpp"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/torch.h>

namespace unishard::test {
namespace {

using namespace trainer;

constexpr int kSteps = 5;

struct History {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> parameters;
};

/// What rank 0 saw.
History train(std::uint32_t world, const Config& config) {
  History history;
  run_threads(world, [&](Communicator& communicator) {
    SmallModel model = build(placement_for(config, communicator));
    Engine engine(model.ptr(), communicator, config);
    for (int step = 0; step < kSteps; ++step) {
      const StepStats stats =
          engine.train_batch([&](const MicroBatch& batch) { return model->loss(batch); });
      if (communicator.rank() != 0) continue;
      history.losses.push_back(stats.loss);
      history.norms.push_back(stats.gradient_norm);
    }
    const GatheredScope gathered(engine);
    if (communicator.rank() != 0) return;
    for (const auto& each : model->named_parameters()) {
      history.parameters[each.key()] = each.value().detach().to(at::kFloat).clone();
    }
  });
  return history;
}

/// Plain autograd on the global batch, torch.optim.AdamW with the same two groups.
History reference() {
  const Config config = small_config(0);
  SmallModel model = build({.seed = config.seed});
  std::vector<at::Tensor> decay, no_decay;
  for (const auto& each : model->named_parameters()) {
    if (!each.value().requires_grad() || each.key() == "out.weight") continue;
    (each.value().dim() >= 2 ? decay : no_decay).push_back(each.value());
  }
  const auto options = [&](double weight_decay) {
    return torch::optim::AdamWOptions(config.hyper.lr)
        .betas({config.hyper.beta1, config.hyper.beta2})
        .eps(config.hyper.eps)
        .weight_decay(weight_decay);
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(
      decay, std::make_unique<torch::optim::AdamWOptions>(options(config.hyper.weight_decay)));
  groups.emplace_back(no_decay, std::make_unique<torch::optim::AdamWOptions>(options(0)));
  torch::optim::AdamW optimizer(groups, options(0));
  std::vector<at::Tensor> all = decay;
  all.insert(all.end(), no_decay.begin(), no_decay.end());
  History history;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(
        {.step = step, .id = 0, .first_sample = 12u * static_cast<unsigned>(step), .samples = 12});
    loss.backward();
    history.losses.push_back(loss.item<double>());
    history.norms.push_back(torch::nn::utils::clip_grad_norm_(all, config.gradient_clipping));
    optimizer.step();
  }
  for (const auto& each : model->named_parameters())
    history.parameters[each.key()] = each.value().detach().clone();
  return history;
}

/// The reference's batch is one piece; the engine's micro-batches must see the same numbers.
double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(Engine, EqualsPlainAutogradAndTorchAdamW) {
  // The data of micro-batch i are its own; so the reference is the engine's mean over micro-batches
  // only when the loss is a mean over samples with data that depend on the sample index alone.
  const Config one_piece = [] {
    Config config = small_config(0);
    config.batch = {.train = 12, .micro = 12, .accumulation = {}};
    return config;
  }();
  const History expected = reference();
  for (std::uint32_t stage = 0; stage <= 3; ++stage) {
    for (const std::uint32_t world : {1u, 3u}) {
      Config config = one_piece;
      config.stage = stage;
      const History actual = train(world, config);
      for (int step = 0; step < kSteps; ++step) {
        const auto s = static_cast<std::size_t>(step);
        EXPECT_NEAR(actual.losses[s], expected.losses[s], 1e-6)
            << "stage " << stage << " W " << world;
        EXPECT_NEAR(actual.norms[s], expected.norms[s], 1e-5);
      }
      for (const auto& [name, value] : expected.parameters) {
        EXPECT_LT(difference(actual.parameters.at(name), value), 2e-5) << name;
      }
    }
  }
}

class SameBits : public testing::TestWithParam<DType> {};

TEST_P(SameBits, OnEveryWorldSizeAndStage) {
  Config base = small_config(3, GetParam());
  const History expected = train(1, base);
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  for (std::uint32_t stage = 0; stage <= 3; ++stage) {
    for (const std::uint32_t world : {1u, 2u, 4u, 5u}) {
      Config config = small_config(stage, GetParam());
      config.canonical_order = true;
      const History actual = train(world, config);
      EXPECT_EQ(actual.losses, expected.losses) << "stage " << stage << " W " << world;
      EXPECT_EQ(actual.norms, expected.norms);
      for (const auto& [name, value] : expected.parameters) {
        EXPECT_TRUE(at::equal(actual.parameters.at(name), value)) << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Compute, SameBits, testing::Values(DType::Float32, DType::BFloat16),
                         [](const auto& row) { return std::string(name_of(row.param)); });

TEST(Engine, LocalAccumulationIsCloseToTheCanonicalOrder) {
  const History canonical = train(2, small_config(2));
  for (const std::uint32_t stage : {0u, 1u}) {
    const History local = train(2, small_config(stage));
    for (std::size_t step = 0; step < kSteps; ++step)
      EXPECT_NEAR(local.losses[step], canonical.losses[step], 1e-5);
  }
}

TEST(Engine, AModelBuiltWithoutAScopeIsShardedByTheEngine) {
  Config config = small_config(3);
  run_threads(2, [&](Communicator& communicator) {
    SmallModel model{nullptr};
    {
      const std::lock_guard lock(construction_mutex());
      torch::manual_seed(3);
      model = SmallModel();
    }
    Engine engine(model.ptr(), communicator, config);
    const auto stats =
        engine.train_batch([&](const MicroBatch& batch) { return model->loss(batch); });
    EXPECT_GT(stats.loss, 0);
    EXPECT_EQ(engine.memory().parameters, 0);
  });
}

TEST(Engine, RefusesAUnitsParameterThatIsShared) {
  const auto single = make_single_communicator();
  for (const std::uint32_t stage : {2u, 3u}) {
    SmallModel model;
    model->register_module("thief", std::make_shared<TiedImpl>(model->blocks[0]->up->weight));
    EXPECT_THROW(Engine(model.ptr(), *single, small_config(stage)), Error);
  }
}

TEST(Engine, RefusesAModelThatWasPlacedForAnotherStage) {
  const auto single = make_single_communicator();
  SmallModel model = build(placement_for(small_config(3), *single));
  EXPECT_THROW(Engine(model.ptr(), *single, small_config(2)), Error);
}

TEST(Engine, EvaluateIsTheSameOnEveryWorldSizeAndChangesNothing) {
  std::vector<double> values;
  for (const std::uint32_t world : {1u, 3u}) {
    run_threads(world, [&](Communicator& communicator) {
      const Config config = small_config(3);
      SmallModel model = build(placement_for(config, communicator));
      Engine engine(model.ptr(), communicator, config);
      const double value =
          engine.evaluate([&](const MicroBatch& batch) { return model->loss(batch); }, 5);
      EXPECT_EQ(engine.global_steps(), 0);
      if (communicator.rank() == 0) values.push_back(value);
    });
  }
  EXPECT_EQ(values[0], values[1]);
}

/// Three steps of the torch optimizer and of ours on the same gradients.
template <class Torch, class Options>
void compare_with_torch(const char* name, const Hyper& hyper, const Options& options) {
  torch::manual_seed(1);
  at::Tensor weights = torch::randn({1000}).requires_grad_(true);
  const auto ours = make_optimizer(name, hyper);
  const at::Tensor mine = weights.detach().clone();
  std::vector<at::Tensor> states;
  std::vector<std::span<float>> spans;
  for (std::size_t i = 0; i < ours->state_names().size(); ++i)
    states.push_back(torch::zeros({1000}));
  for (const at::Tensor& state : states) spans.emplace_back(state.data_ptr<float>(), 1000);
  Torch theirs({weights}, options);
  for (int step = 1; step <= 4; ++step) {
    const at::Tensor gradient = torch::randn({1000});
    weights.mutable_grad() = gradient.clone();
    theirs.step();
    ours->update(hyper, step, 1.0F, {mine.data_ptr<float>(), 1000},
                 {gradient.data_ptr<float>(), 1000}, spans);
    EXPECT_LT(difference(mine, weights.detach()), 2e-6) << name << " step " << step;
  }
}

TEST(OptimizersAgainstTorch, AdamW) {
  compare_with_torch<torch::optim::AdamW>(
      "AdamW", {.lr = 0.01, .beta2 = 0.95, .weight_decay = 0.1},
      torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).weight_decay(0.1));
}
TEST(OptimizersAgainstTorch, Adam) {
  compare_with_torch<torch::optim::Adam>(
      "Adam", {.lr = 0.01, .weight_decay = 0.1, .decoupled_decay = false},
      torch::optim::AdamOptions(0.01).weight_decay(0.1));
}
TEST(OptimizersAgainstTorch, SgdWithMomentumAndDampening) {
  compare_with_torch<torch::optim::SGD>(
      "SGD", {.lr = 0.01, .weight_decay = 0.1, .momentum = 0.9, .dampening = 0.3},
      torch::optim::SGDOptions(0.01).momentum(0.9).dampening(0.3).weight_decay(0.1));
}
TEST(OptimizersAgainstTorch, SgdWithNesterov) {
  compare_with_torch<torch::optim::SGD>(
      "SGD", {.lr = 0.01, .momentum = 0.9, .nesterov = true},
      torch::optim::SGDOptions(0.01).momentum(0.9).nesterov(true));
}
TEST(OptimizersAgainstTorch, Adagrad) {
  compare_with_torch<torch::optim::Adagrad>(
      "Adagrad", {.lr = 0.01, .eps = 1e-10, .weight_decay = 0.1, .lr_decay = 0.1},
      torch::optim::AdagradOptions(0.01).eps(1e-10).weight_decay(0.1).lr_decay(0.1));
}

TEST(Engine, EvaluateLeavesEveryModuleInItsMode) {
  with_engine(1, small_config(2), {}, [](Engine& engine, SmallModel& model, Communicator&) {
    const auto loss = [&](const MicroBatch& batch) {
      EXPECT_FALSE(model->is_training() || model->in->is_training());
      return model->loss(batch);
    };
    model->train();
    model->blocks[0]->eval();
    engine.evaluate(loss, 1);
    EXPECT_TRUE(model->is_training() && model->blocks[1]->up->is_training());
    EXPECT_FALSE(model->blocks[0]->is_training() || model->blocks[0]->up->is_training());
    model->eval();
    engine.evaluate(loss, 1);
    EXPECT_FALSE(model->is_training() || model->blocks[1]->up->is_training());
  });
}

TEST(Dropout, ScalesWhatItKeepsAndIsOffAtZero) {
  const at::Tensor x = torch::ones({10000});
  EXPECT_TRUE(at::equal(dropout(x, 0), x));
  const at::Tensor y = dropout(x, 0.25);
  EXPECT_NEAR(y.mean().item<double>(), 1, 0.03);
  EXPECT_NEAR((y == 0).to(at::kFloat).mean().item<double>(), 0.25, 0.03);
  EXPECT_THROW(dropout(x, 1.0), Error);
}

}  // namespace
}  // namespace unishard::test
