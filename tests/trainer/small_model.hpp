#pragma once
// A model with everything that the engine must handle: units, a nested unit, a tied and a frozen
// parameter, buffers, and a parameter that the loss does not use.
#include "unishard/trainer/construction.hpp"
#include "unishard/trainer/engine.hpp"
#include "unishard/trainer/sharded.hpp"

#include "thread_group.hpp"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <map>
#include <string>
#include <vector>

namespace unishard::test {

inline constexpr std::int64_t kWidth = 40;

struct InnerImpl : torch::nn::Module {
  InnerImpl() : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(x).tanh(); }
  torch::nn::Linear linear;
};

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", torch::nn::Linear(kWidth, 64))),
        down(register_module("down", torch::nn::Linear(64, kWidth))),
        inner(register_module("inner", trainer::Sharded<InnerImpl>())),
        unused(register_parameter("unused", torch::ones({7}))),
        frozen(register_parameter("frozen", torch::full({kWidth}, 0.5), /*requires_grad=*/false)),
        scale(register_buffer("scale", torch::full({kWidth}, 2.0))) {}
  at::Tensor forward(const at::Tensor& x) {
    return x + inner(down(up(norm(x)).relu())) * frozen * scale;
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
  trainer::Sharded<InnerImpl> inner;
  at::Tensor unused, frozen, scale;
};

struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(const at::Tensor& weight) { register_parameter("weight", weight); }
};

struct SmallModelImpl : torch::nn::Module {
  SmallModelImpl() : in(register_module("in", torch::nn::Linear(8, kWidth))) {
    for (int i = 0; i < 2; ++i) {
      blocks.emplace_back();
      register_module("block" + std::to_string(i), blocks.back());
    }
    register_module("out", std::make_shared<TiedImpl>(in->weight));
    register_buffer("counter", torch::zeros({}, at::kLong));
  }
  at::Tensor forward(at::Tensor x) {
    x = in(x);
    for (auto& block : blocks) x = block(x);
    return at::matmul(x, in->weight);
  }
  at::Tensor loss(const trainer::MicroBatch& batch) {
    const auto first = static_cast<std::int64_t>(batch.first_sample);
    at::Tensor x = at::arange(batch.samples * 8, at::kFloat).view({batch.samples, 8});
    x = (x * 0.37 + static_cast<double>(first)).sin().to(in->weight.device());
    const at::Tensor y = forward(x.to(in->weight.scalar_type())).to(at::kFloat);
    return (y - x.cos()).pow(2).mean();
  }
  torch::nn::Linear in;
  std::vector<trainer::Sharded<BlockImpl>> blocks;
};
TORCH_MODULE(SmallModel);

inline SmallModel build(const trainer::Placement& placement) {
  const std::lock_guard lock(construction_mutex());
  const trainer::ConstructionScope scope(placement);
  return SmallModel();
}

inline trainer::Config small_config(std::uint32_t stage, DType compute = DType::Float32) {
  trainer::Config config;
  config.batch = {.train = 12, .micro = 2, .accumulation = {}};
  config.hyper = {.lr = 1e-2, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};
  config.stage = stage;
  config.compute = compute;
  return config;
}

/// Runs `world` ranks as threads: calls `body` with engine and model.
inline void with_engine(
    std::uint32_t world, const trainer::Config& config, const trainer::EngineOptions& options,
    const std::function<void(trainer::Engine&, SmallModel&, trainer::Communicator&)>& body) {
  run_threads(world, [&](trainer::Communicator& communicator) {
    SmallModel model = build(trainer::placement_for(config, communicator));
    trainer::Engine engine(model.ptr(), communicator, config, options);
    body(engine, model, communicator);
  });
}

inline trainer::StepStats step(trainer::Engine& engine, SmallModel& model) {
  return engine.train_batch([&](const trainer::MicroBatch& batch) { return model->loss(batch); });
}

using Parameters = std::map<std::string, at::Tensor>;

/// Returns copies of all parameters. Collective.
inline Parameters parameters_of(trainer::Engine& engine, SmallModel& model) {
  const trainer::GatheredScope gathered(engine);
  Parameters values;
  for (const auto& each : model->named_parameters())
    values[each.key()] = each.value().detach().clone();
  return values;
}

inline void expect_equal(const Parameters& a, const Parameters& b) {
  ASSERT_FALSE(a.empty());
  for (const auto& [name, value] : a) EXPECT_TRUE(at::equal(value, b.at(name))) << name;
}

/// What a run gave.
struct Ran {
  std::vector<double> numbers;  ///< losses and norms
  Parameters parameters;
};

inline void expect_same(const Ran& a, const Ran& b) {
  EXPECT_EQ(a.numbers, b.numbers);
  expect_equal(a.parameters, b.parameters);
}

}  // namespace unishard::test
