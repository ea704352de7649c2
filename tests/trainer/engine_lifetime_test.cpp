// One engine at a time, exceptions of the loss, ranks that differ, and randomness.
#include "unishard/format/error.hpp"
#include "unishard/format/partition.hpp"

#include "expect.hpp"
#include "runtime/host_square_sums.hpp"
#include "small_model.hpp"
#include "state/square_sums.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <stdexcept>

namespace unishard::test {
namespace {

using namespace trainer;
using testing::HasSubstr;

class EngineOfAModel : public testing::TestWithParam<std::tuple<std::uint32_t, DType>> {
 protected:
  Config config_ = small_config(std::get<0>(GetParam()), std::get<1>(GetParam()));
};

TEST_P(EngineOfAModel, IsRefusedWhileAnotherOneLives) {
  with_engine(2, config_, {}, [&](Engine& engine, SmallModel& model, Communicator& communicator) {
    const double loss = step(engine, model).loss;
    EXPECT_THAT(error_of([&] { Engine(model.ptr(), communicator, config_); }),
                Fails(ErrorCode::InvalidArgument, "belongs to another engine"));
    EXPECT_LT(step(engine, model).loss, loss);
  });
}

TEST_P(EngineOfAModel, StartsWithTheValuesThatTheFormerOneLeft) {
  run_threads(2, [&](Communicator& communicator) {
    SmallModel model = build(placement_for(config_, communicator));
    Parameters before;
    {
      Engine engine(model.ptr(), communicator, config_);
      step(engine, model);
      before = parameters_of(engine, model);
    }
    Engine engine(model.ptr(), communicator, config_);
    EXPECT_EQ(engine.global_steps(), 0);
    expect_equal(before, parameters_of(engine, model));
    const StepStats first = step(engine, model);
    EXPECT_GT(first.gradient_norm, 0);
  });
}

TEST_P(EngineOfAModel, TrainsAsIfThereHadBeenNoOther) {
  // The first engine does no step, so the second has to do what it would have done.
  Parameters once, twice;
  for (Parameters* result : {&once, &twice}) {
    run_threads(2, [&](Communicator& communicator) {
      SmallModel model = build(placement_for(config_, communicator));
      if (result == &twice) Engine(model.ptr(), communicator, config_);
      Engine engine(model.ptr(), communicator, config_);
      step(engine, model);
      step(engine, model);
      const Parameters values = parameters_of(engine, model);
      if (communicator.rank() == 0) *result = values;
    });
  }
  expect_equal(once, twice);
}

enum class BrokenStep { None, InLoss, InBackward };

/// Micro-batch 2, which both ranks reach in their second round, fails with the first backward.
LossFunction failing(SmallModel& model, BrokenStep fault) {
  return [&model, fault](const MicroBatch& batch) -> at::Tensor {
    const at::Tensor loss = model->loss(batch);
    if (batch.id < 2) return loss;
    if (fault == BrokenStep::InLoss) throw std::runtime_error("no data");
    const at::Tensor last = loss * 1.0;
    last.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("broken"); });
    return last * 1.0;
  };
}

TEST_P(EngineOfAModel, AnExceptionThatIsCaughtChangesNoBitOfTheNextStep) {
  std::map<BrokenStep, Parameters> results;
  for (const BrokenStep fault : {BrokenStep::None, BrokenStep::InLoss, BrokenStep::InBackward}) {
    with_engine(2, config_, {}, [&](Engine& engine, SmallModel& model, Communicator& communicator) {
      step(engine, model);
      const std::int64_t resident = engine.memory().parameters;
      if (fault != BrokenStep::None) {
        EXPECT_THROW(engine.train_batch(failing(model, fault)), std::runtime_error);
      }
      EXPECT_EQ(engine.memory().parameters, resident);
      step(engine, model);
      const Parameters values = parameters_of(engine, model);
      if (communicator.rank() == 0) results[fault] = values;
    });
  }
  expect_equal(results[BrokenStep::None], results[BrokenStep::InLoss]);
  expect_equal(results[BrokenStep::None], results[BrokenStep::InBackward]);
}

INSTANTIATE_TEST_SUITE_P(Stages, EngineOfAModel,
                         testing::Combine(testing::Range(0u, 4u),
                                          testing::Values(DType::Float32, DType::BFloat16)));

TEST(RanksThatDiffer, InAnInitialValueAreAnErrorOnEveryRank) {
  run_threads(3, [](Communicator& communicator) {
    const Config config = small_config(2);
    SmallModel model = build(placement_for(config, communicator));
    if (communicator.rank() == 1) {
      const at::NoGradGuard no_grad;
      model->in->bias[3] += 1;
    }
    const Error error = error_of([&] { Engine(model.ptr(), communicator, config); });
    EXPECT_THAT(error, Fails(ErrorCode::Mismatch)) << communicator.rank();
    EXPECT_THAT(error.what(), HasSubstr("rank 1 differs from rank 0: it has \"parameter in.bias: "
                                        "Float [40], trained, values "));
  });
}

TEST(RanksThatDiffer, InTheConfigurationAreAnErrorOnEveryRank) {
  run_threads(2, [](Communicator& communicator) {
    Config config = small_config(2);
    config.source = {{"optimizer", {{"params", {{"lr", communicator.rank() == 0 ? 0.1 : 0.2}}}}}};
    SmallModel model = build(placement_for(config, communicator));
    EXPECT_THAT(error_of([&] { Engine(model.ptr(), communicator, config); }).what(),
                HasSubstr("it has \"configuration /optimizer/params/lr: 0.2\", and rank 0 has "
                          "\"configuration /optimizer/params/lr: 0.1\""));
  });
}

TEST(RanksThatDiffer, InTheOrderOfUnitsAreAnErrorBeforeTheUpdate) {
  with_engine(
      2, small_config(3), {}, [](Engine& engine, SmallModel& model, Communicator& communicator) {
        const Parameters before = parameters_of(engine, model);
        if (communicator.rank() == 1) std::swap(model->blocks[0], model->blocks[1]);
        EXPECT_THAT(
            error_of([&] { step(engine, model); }).what(),
            HasSubstr("rank 1 used the model's units in another order than rank 0: "
                      "it has \"gather unit block1\", and rank 0 has \"gather unit block0\""));
        EXPECT_EQ(engine.global_steps(), 0);
        expect_equal(before, parameters_of(engine, model));
      });
}

/// A unit of two equal matrices, of which a rank may leave out one.
struct BranchImpl : torch::nn::Module {
  BranchImpl()
      : first(register_parameter("first", torch::full({kWidth, kWidth}, 0.02))),
        second(register_parameter("second", torch::full({kWidth, kWidth}, 0.03))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + at::matmul(x, first).tanh();
    return uses_second ? y + at::matmul(y, second).tanh() : y;
  }
  at::Tensor first, second;
  bool uses_second = true;
};

struct BranchesImpl : torch::nn::Module {
  BranchesImpl() : in(register_module("in", torch::nn::Linear(8, kWidth))) {
    for (int i = 0; i < 3; ++i) {
      branches.emplace_back();
      register_module("branch" + std::to_string(i), branches.back());
    }
  }
  at::Tensor loss(const MicroBatch& batch) {
    at::Tensor x = in(at::full({2, 8}, 0.1 * static_cast<double>(batch.first_sample + 1)));
    for (std::size_t i = 0; i < branches.size(); ++i) {
      if (i != left_out) x = branches[i](x);
    }
    return x.pow(2).mean();
  }
  torch::nn::Linear in;
  std::vector<Sharded<BranchImpl>> branches;
  std::size_t left_out = 99;
};

/// Runs a step in which rank 1 of two computes something else.
void expect_another_order(std::uint32_t stage, const std::function<void(BranchesImpl&)>& change,
                          const std::string& difference) {
  run_threads(2, [&](Communicator& communicator) {
    const auto model = [] {
      const std::lock_guard lock(construction_mutex());
      torch::manual_seed(5);
      return std::make_shared<BranchesImpl>();
    }();
    Engine engine(model, communicator, small_config(stage));
    const auto loss = [&](const MicroBatch& batch) { return model->loss(batch); };
    engine.train_batch(loss);
    if (communicator.rank() == 1) change(*model);
    const Error error = error_of([&] { engine.train_batch(loss); });
    EXPECT_THAT(error, Fails(ErrorCode::Mismatch)) << "stage " << stage;
    EXPECT_THAT(error.what(), HasSubstr(difference)) << "stage " << stage;
    EXPECT_EQ(engine.global_steps(), 1);
  });
}

TEST(RanksThatDiffer, InTheParametersThatTheyUseAreAnErrorBeforeTheUpdate) {
  for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
    expect_another_order(
        stage, [](BranchesImpl& model) { model.branches[2]->uses_second = false; },
        "it has \"reduce unit branch1\", and rank 0 has \"reduce unit branch2\"");
  }
}

TEST(RanksThatDiffer, InTheUnitsThatTheyUseAreAnErrorBeforeTheUpdate) {
  for (const std::uint32_t stage : {0u, 1u, 2u}) {
    expect_another_order(
        stage, [](BranchesImpl& model) { model.left_out = 1; },
        "it has \"reduce unit branch0\", and rank 0 has \"reduce unit branch1\"");
  }
}

TEST_P(EngineOfAModel, IgnoresGradientsThatTheParametersHadBefore) {
  std::vector<double> norms;
  for (const bool had_gradients : {false, true}) {
    run_threads(2, [&](Communicator& communicator) {
      SmallModel model = [] {
        const std::lock_guard lock(construction_mutex());
        torch::manual_seed(5);
        return SmallModel();
      }();
      if (had_gradients) model->loss({.samples = 2}).backward();
      Engine engine(model.ptr(), communicator, config_);
      const StepStats stats = step(engine, model);
      if (communicator.rank() == 0) norms.push_back(stats.gradient_norm);
    });
  }
  EXPECT_EQ(norms[0], norms[1]);
}

TEST(Randomness, OfTheDefaultGeneratorIsAFunctionOfStepAndMicroBatch) {
  const auto single = make_single_communicator();
  const Config config = small_config(0);
  SmallModel model = build(placement_for(config, *single));
  Engine engine(model.ptr(), *single, config);
  std::map<std::pair<std::int64_t, std::int64_t>, float> drawn;
  const auto loss = [&](const MicroBatch& batch) {
    const float value = torch::rand({}).item<float>();
    const auto [at, fresh] = drawn.emplace(std::pair(batch.step, batch.id), value);
    EXPECT_EQ(at->second, value);
    return model->loss(batch);
  };
  torch::manual_seed(7);
  engine.train_batch(loss);
  EXPECT_EQ(drawn.size(), 6u);
  const float after = torch::rand({}).item<float>();
  torch::manual_seed(7);
  EXPECT_EQ(after, torch::rand({}).item<float>()) << "the user's own draws are as without the step";
  engine.train_batch(loss);
  EXPECT_EQ(drawn.size(), 12u);
  std::set<float> values;
  for (const auto& [batch, value] : drawn) values.insert(value);
  EXPECT_EQ(values.size(), 12u);
}

struct DeepImpl : torch::nn::Module {
  DeepImpl() : in(register_module("in", torch::nn::Linear(8, kWidth))) {
    for (int i = 0; i < 6; ++i) {
      blocks.emplace_back();
      register_module("block" + std::to_string(i), blocks.back());
    }
  }
  at::Tensor loss() {
    at::Tensor x = in(at::ones({2, 8}));
    for (auto& block : blocks) x = block(x);
    return x.pow(2).mean();
  }
  torch::nn::Linear in;
  std::vector<Sharded<BlockImpl>> blocks;
};

TEST(Memory, AnUnusedParameterDoesNotKeepItsUnitGathered) {
  const auto single = make_single_communicator();
  const auto model = std::make_shared<DeepImpl>();  // each block has a parameter without gradient
  Config config = small_config(3);
  config.zero.max_reuse_distance = 0;
  config.zero.prefetch_bucket_size = 0;
  Engine engine(model, *single, config);
  engine.reset_memory_peak();
  engine.train_batch([&](const MicroBatch&) { return model->loss(); });
  const std::int64_t peak = engine.memory().parameters_peak;
  const GatheredScope all(engine);
  EXPECT_LT(peak, engine.memory().parameters / 2);
}

/// The sum of blocks along a binary tree, neighbours first.
double tree_sum(std::span<const double> blocks) {
  if (blocks.size() == 1) return blocks[0];
  const std::size_t half = blocks.size() / 2;
  return tree_sum(blocks.first(half)) + tree_sum(blocks.subspan(half));
}

TEST(GradientNorm, AGroupIsTheTreeOfItsBlocks) {
  const std::vector<std::uint8_t> levels{0, 3, 1, 4};
  std::vector<float> gradients((1 + 8 + 2 + 16) * kShardBlock);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    gradients[i] = std::sin(static_cast<float>(i)) * std::exp2(static_cast<float>(i % 40));
  std::vector<double> blocks(gradients.size() / kShardBlock), sums(levels.size());
  trainer::detail::block_square_sums(gradients, blocks);
  trainer::detail::group_square_sums(gradients, levels, sums);
  std::span<const double> rest = blocks;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    EXPECT_EQ(sums[i], tree_sum(rest.first(std::size_t{1} << levels[i])));
    rest = rest.subspan(std::size_t{1} << levels[i]);
  }
}

TEST(GradientNorm, SendsAFewNumbersForAnyNumberOfBlocks) {
  for (const std::uint64_t begin : {0ull, 1ull, 1000ull, 123456789ull}) {
    for (const std::uint64_t count : {0ull, 1ull, 7ull, 4096ull, 1234567ull}) {
      const auto nodes = trainer::detail::tree_nodes(begin, begin + count);
      EXPECT_LE(nodes.size(), 44u);
      std::uint64_t next = begin;
      for (const auto& node : nodes) {
        EXPECT_EQ(node.index << node.level, next);
        next += std::uint64_t{1} << node.level;
      }
      EXPECT_EQ(next, begin + count);
    }
  }
}

}  // namespace
}  // namespace unishard::test
