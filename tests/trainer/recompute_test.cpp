// Activation checkpointing changes memory and time, and no bit.
#include "unishard/trainer/recompute.hpp"

#include "unishard/trainer/dropout.hpp"

#include "expect.hpp"
#include "small_model.hpp"

#include <ATen/ops/rand_like.h>
#include <torch/nn/functional/dropout.h>
#include <torch/utils.h>

namespace unishard::test {
namespace {

using namespace trainer;

struct NoisyImpl : torch::nn::Module {
  NoisyImpl() : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = dropout(linear(x).tanh(), 0.2);  // the unit's generator
    if (!draws_from_default) return x + y;
    return x + torch::nn::functional::dropout(y) * at::rand_like(y);
  }
  torch::nn::Linear linear;
  bool draws_from_default = false;
};

struct NoisyModelImpl : torch::nn::Module {
  explicit NoisyModelImpl(std::unique_ptr<Recompute> the_recompute)
      : in(register_module("in", torch::nn::Linear(8, kWidth))),
        recompute(std::move(the_recompute)) {
    for (int i = 0; i < 4; ++i) {
      blocks.emplace_back();
      register_module("block" + std::to_string(i), blocks.back());
    }
  }
  at::Tensor loss(const MicroBatch& batch) {
    at::Tensor x = in(at::full({64, 8}, 0.1 * static_cast<double>(batch.first_sample + 1)));
    for (auto& block : blocks) {
      x = recompute ? (*recompute)([&](const at::Tensor& input) { return block(input); }, x)
                    : block(x);
      x = dropout(x, 0.1);  // the generator of the micro-batch
    }
    return x.pow(2).mean();
  }
  torch::nn::Linear in;
  std::vector<Sharded<NoisyImpl>> blocks;
  std::unique_ptr<Recompute> recompute;
};

/// What rank 0 saw.
struct Outcome {
  std::vector<double> losses, norms;
  RecomputeStats stats;
};

/// The default generator belongs to the process: it is drawn from when one thread is the only rank.
Outcome train(std::uint32_t world, std::uint32_t stage,
              const std::optional<RecomputeOptions>& options) {
  Outcome run;
  run_threads(world, [&](Communicator& communicator) {
    const auto model = [&] {
      const std::lock_guard lock(construction_mutex());
      torch::manual_seed(5);
      return std::make_shared<NoisyModelImpl>(options ? std::make_unique<Recompute>(*options)
                                                      : nullptr);
    }();
    for (auto& block : model->blocks) block->draws_from_default = world == 1;
    Config config = small_config(stage);
    config.canonical_order = true;
    Engine engine(model, communicator, config);
    for (int i = 0; i < 3; ++i) {
      const StepStats stats =
          engine.train_batch([&](const MicroBatch& batch) { return model->loss(batch); });
      if (communicator.rank() != 0) continue;
      run.losses.push_back(stats.loss);
      run.norms.push_back(stats.gradient_norm);
    }
    if (communicator.rank() == 0 && model->recompute) run.stats = model->recompute->stats();
  });
  return run;
}

TEST(Recompute, GivesTheSameBitsAtEveryStage) {
  for (const auto& [world, stage] : {std::pair{1u, 0u}, {1u, 3u}, {2u, 0u}, {2u, 2u}, {2u, 3u}}) {
    const Outcome plain = train(world, stage, std::nullopt);
    for (const RecomputeOptions& options :
         {RecomputeOptions{}, RecomputeOptions{.cpu_checkpointing = true},
          RecomputeOptions{.contiguous_memory_optimization = true, .number_checkpoints = 4},
          RecomputeOptions{.profile = true}}) {
      const Outcome again = train(world, stage, options);
      EXPECT_EQ(again.losses, plain.losses) << "stage " << stage;
      EXPECT_EQ(again.norms, plain.norms) << "stage " << stage;
      EXPECT_EQ(again.stats.calls, 3 * (6 / world) * 4);  // steps, micro-batches, blocks
      EXPECT_EQ(again.stats.kept_bytes, 0);
      EXPECT_EQ(again.stats.kept_bytes_peak, 4 * 64 * kWidth * 4);
      EXPECT_EQ(again.stats.recompute_seconds > 0, options.profile);
    }
  }
}

/// Its weight is computed from parameters alone, before the input is used.
struct ProductImpl : torch::nn::Module {
  ProductImpl()
      : left(register_parameter("left", torch::ones({kWidth, 4}))),
        right(register_parameter("right", torch::ones({4, kWidth}))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor weight = at::matmul(left, right);
    return at::linear(x, weight * 0.01);
  }
  at::Tensor left, right;
};

TEST(Recompute, AUnitIsGatheredUntilWhatItComputesFromParametersAloneIsDone) {
  std::vector<double> norms;
  for (const std::uint32_t stage : {2u, 3u}) {
    const auto single = make_single_communicator();
    Sharded<ProductImpl> unit;
    Engine engine(unit.ptr(), *single, small_config(stage));
    Recompute recompute;
    const auto loss = [&](const MicroBatch&) {
      const at::Tensor x = torch::ones({2, kWidth}).requires_grad_(true);
      return recompute([&](const at::Tensor& in) { return unit->forward(in); }, x).pow(2).mean();
    };
    norms.push_back(engine.train_batch(loss).gradient_norm);
  }
  EXPECT_GT(norms[0], 0);
  EXPECT_EQ(norms[0], norms[1]);
}

/// Counts the tensors that autograd keeps: each saved tensor shares the storage of an activation.
TEST(Recompute, KeepsOnlyTheInputsAlive) {
  const auto alive_after_forward = [](bool recomputes) {
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made;
    const auto layer = [&](const at::Tensor& x) {
      at::Tensor y = x;
      for (int i = 0; i < 10; ++i) {
        y = y.tanh();
        made.emplace_back(
            c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(y.storage().unsafeGetStorageImpl()));
      }
      return y;
    };
    Recompute recompute;
    const at::Tensor x = torch::ones({100}).requires_grad_(true);
    const at::Tensor y = recomputes ? recompute(layer, x) : layer(x);
    const auto alive =
        std::ranges::count_if(made, [](const auto& each) { return !each.expired(); });
    y.sum().backward();
    EXPECT_TRUE(x.grad().defined());
    return alive;
  };
  EXPECT_EQ(alive_after_forward(false), 10);
  EXPECT_EQ(alive_after_forward(true), 1) << "the result alone";
}

TEST(Recompute, SeveralInputsAndResults) {
  Recompute recompute;
  const at::Tensor a = torch::ones({3}).requires_grad_(true), b = torch::full({3}, 2.0);
  const auto outputs = recompute(
      [](const std::vector<at::Tensor>& in) {
        return std::vector<at::Tensor>{in[0] * in[1], in[1] + 1, in[0].sin()};
      },
      {a, b});
  ASSERT_EQ(outputs.size(), 3u);
  (outputs[0].sum() + outputs[2].sum()).backward();
  EXPECT_TRUE(at::allclose(a.grad(), b + a.detach().cos()));
  EXPECT_FALSE(b.grad().defined());
}

TEST(Recompute, WithoutGradientsKeepsNothing) {
  Recompute recompute;
  const at::NoGradGuard no_grad;
  recompute([](const at::Tensor& x) { return x + 1; }, torch::ones({3}));
  EXPECT_EQ(recompute.stats().kept_bytes_peak, 0);
}

TEST(Recompute, ContiguousMemoryThatIsTooSmallIsAnError) {
  Recompute recompute({.contiguous_memory_optimization = true, .number_checkpoints = 1});
  const at::Tensor x = torch::ones({3}).requires_grad_(true);
  const auto twice = [](const at::Tensor& in) { return in * 2; };
  const at::Tensor y = recompute(twice, x);
  const Error error = error_of([&] { recompute(twice, y); });
  EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
  EXPECT_EQ(error_of([] { Recompute({.contiguous_memory_optimization = true}); }).code(),
            ErrorCode::InvalidArgument);
}

}  // namespace
}  // namespace unishard::test
