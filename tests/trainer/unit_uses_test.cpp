// Units that a micro-batch uses several times, and parameters with several gradients.
#include "unishard/trainer/dropout.hpp"
#include "unishard/trainer/recompute.hpp"

#include "small_model.hpp"

#include <ATen/ops/embedding.h>
#include <torch/utils.h>

namespace unishard::test {
namespace {

using namespace trainer;

constexpr double kRate = 0.05;

struct LayerImpl : torch::nn::Module {
  LayerImpl() : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) { return x + linear(x).tanh(); }
  torch::nn::Linear linear;
};

/// A function of the global micro-batch.
at::Tensor input_of(const MicroBatch& batch, std::int64_t width) {
  const at::Tensor x = at::arange(batch.samples * width, at::kFloat).view({batch.samples, width});
  return (x * 0.37 + static_cast<double>(batch.first_sample)).sin();
}

/// A model that keeps its activations or computes them again.
struct RecomputedImpl : torch::nn::Module {
  virtual at::Tensor loss(const MicroBatch& batch) = 0;
  at::Tensor run(const std::function<at::Tensor(const at::Tensor&)>& part, const at::Tensor& x) {
    return recomputes ? recompute(part, x) : part(x);
  }
  bool recomputes = false;
  Recompute recompute;
};

/// Uses one layer three times, as a model that shares the weights of its layers does.
struct SharedLayerImpl : RecomputedImpl {
  SharedLayerImpl()
      : in(register_module("in", torch::nn::Linear(8, kWidth))),
        layer(register_module("layer", Sharded<LayerImpl>())) {}
  at::Tensor loss(const MicroBatch& batch) override {
    at::Tensor x = in(input_of(batch, 8));
    for (int i = 0; i < 3; ++i) x = run([this](const at::Tensor& y) { return layer(y); }, x);
    return x.pow(2).mean();
  }
  torch::nn::Linear in;
  Sharded<LayerImpl> layer;
};

/// Uses the embedding's weight as its head.
struct TiedHeadImpl : RecomputedImpl {
  TiedHeadImpl()
      : tokens(register_parameter("tokens", torch::randn({16, kWidth}) * 0.1)),
        positions(register_parameter("positions", torch::randn({4, kWidth}) * 0.1)),
        layer(register_module("layer", Sharded<LayerImpl>())) {}
  at::Tensor loss(const MicroBatch& batch) override {
    const at::Tensor ids =
        (at::arange(4, at::kLong) * 3 + static_cast<std::int64_t>(batch.first_sample))
            .remainder(16);
    const at::Tensor x = layer(at::embedding(tokens, ids) + positions);
    return run([this](const at::Tensor& y) { return at::matmul(y, tokens.t()); }, x).pow(2).mean();
  }
  at::Tensor tokens, positions;
  Sharded<LayerImpl> layer;
};

template <class Model>
std::shared_ptr<Model> make(bool recomputes) {
  const std::lock_guard lock(construction_mutex());
  torch::manual_seed(5);
  const auto model = std::make_shared<Model>();
  model->recomputes = recomputes;
  return model;
}

Config sgd_config(std::uint32_t stage) {
  Config config = small_config(stage);
  config.batch = {.train = 8, .micro = 2, .accumulation = {}};
  config.optimizer = "SGD";
  config.hyper = {.lr = kRate};
  config.gradient_clipping = 0;
  return config;
}

/// Returns the parameters after two steps of plain autograd without recomputation.
template <class Model>
Parameters plain_steps() {
  const auto model = make<Model>(false);
  for (std::int64_t step = 0; step < 2; ++step) {
    for (std::int64_t id = 0; id < 4; ++id) {
      const auto first = static_cast<std::uint64_t>(step * 8 + id * 2);
      (model->loss({.step = step, .id = id, .first_sample = first, .samples = 2}) / 4).backward();
    }
    const at::NoGradGuard no_grad;
    for (at::Tensor& each : model->parameters()) {
      each.sub_(each.grad() * kRate);
      each.mutable_grad().reset();
    }
  }
  Parameters values;
  for (const auto& each : model->named_parameters()) values[each.key()] = each.value().detach();
  return values;
}

template <class Model>
Parameters engine_steps(std::uint32_t world, const Config& config) {
  Parameters values;
  run_threads(world, [&](Communicator& communicator) {
    const auto model = make<Model>(true);
    Engine engine(model, communicator, config);
    for (int i = 0; i < 2; ++i)
      engine.train_batch([&](const MicroBatch& batch) { return model->loss(batch); });
    const GatheredScope gathered(engine);
    if (communicator.rank() != 0) return;
    for (const auto& each : model->named_parameters())
      values[each.key()] = each.value().detach().clone();
  });
  return values;
}

template <class Model>
void expect_gradients_of_plain_autograd() {
  const Parameters expected = plain_steps<Model>();
  Parameters canonical;
  for (const std::uint32_t world : {1u, 2u}) {
    for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
      const Parameters actual = engine_steps<Model>(world, sgd_config(stage));
      for (const auto& [name, value] : expected) {
        EXPECT_TRUE(at::allclose(actual.at(name), value, 1e-5, 1e-6))
            << name << ", world size " << world << ", stage " << stage;
      }
      if (stage < 2) continue;
      if (canonical.empty()) canonical = actual;
      expect_equal(actual, canonical);
    }
  }
}

TEST(UnitUses, ALayerThatIsRecomputedThreeTimesHasTheGradientsOfPlainAutograd) {
  expect_gradients_of_plain_autograd<SharedLayerImpl>();
}

TEST(UnitUses, ATiedHeadThatIsRecomputedHasTheGradientsOfPlainAutograd) {
  expect_gradients_of_plain_autograd<TiedHeadImpl>();
}

/// A head that computes its gradients part by part, each with a backward pass of its own.
struct HeadInPartsImpl : RecomputedImpl {
  HeadInPartsImpl()
      : in(register_module("in", torch::nn::Linear(8, kWidth))),
        head(register_module("head", Sharded<LayerImpl>())) {}
  at::Tensor loss(const MicroBatch& batch) override {
    const at::Tensor x = in(input_of(batch, 8));
    const double share = 1.0 / static_cast<double>(batch.samples);
    if (!recomputes) return head(x).pow(2).mean();
    const at::Tensor leaf = x.detach().requires_grad_(true);
    for (std::int64_t row = 0; row < batch.samples; ++row)
      (head(leaf[row]).pow(2).mean() * (share / kMicroBatches)).backward();
    return (x * leaf.grad()).sum() * kMicroBatches;  // the engine divides by their number
  }
  static constexpr double kMicroBatches = 4;
  torch::nn::Linear in;
  Sharded<LayerImpl> head;
};

TEST(UnitUses, AUnitWithABackwardPassForEachPartHasTheGradientsOfPlainAutograd) {
  const Parameters expected = plain_steps<HeadInPartsImpl>();
  for (const std::uint32_t world : {1u, 2u}) {
    for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
      const Parameters actual = engine_steps<HeadInPartsImpl>(world, sgd_config(stage));
      for (const auto& [name, value] : expected) {
        EXPECT_TRUE(at::allclose(actual.at(name), value, 1e-5, 1e-6))
            << name << ", world size " << world << ", stage " << stage;
      }
    }
  }
}

/// Notes the mask of each use.
struct MaskedImpl : torch::nn::Module {
  MaskedImpl() : scale(register_parameter("scale", torch::ones({kWidth}))) {}
  at::Tensor forward(const at::Tensor& x) {
    masks.push_back(dropout(at::ones({kWidth}), 0.5));
    return x * scale * masks.back();
  }
  at::Tensor scale;
  std::vector<at::Tensor> masks;
};

enum class Parts { Kept, EachUse, BothUses };

/// Returns the masks of one micro-batch that uses a unit twice.
std::vector<at::Tensor> masks_of_two_uses(Parts recomputed) {
  const auto single = make_single_communicator();
  Sharded<MaskedImpl> unit;
  Config config = sgd_config(3);
  config.batch = {.train = 2, .micro = 2, .accumulation = {}};
  Engine engine(unit.ptr(), *single, config);
  Recompute recompute;
  const std::function<at::Tensor(const at::Tensor&)> once = [&](const at::Tensor& x) {
    return unit->forward(x);
  };
  engine.train_batch([&](const MicroBatch&) {
    const at::Tensor x = torch::ones({kWidth}).requires_grad_(true);
    if (recomputed == Parts::Kept) return once(once(x)).sum();
    if (recomputed == Parts::EachUse) return recompute(once, recompute(once, x)).sum();
    return recompute([&](const at::Tensor& y) { return once(once(y)); }, x).sum();
  });
  return unit->masks;
}

TEST(UnitUses, HaveDropoutMasksOfTheirOwn) {
  const std::vector<at::Tensor> masks = masks_of_two_uses(Parts::Kept);
  ASSERT_EQ(masks.size(), 2u);
  EXPECT_FALSE(at::equal(masks[0], masks[1]));
}

TEST(UnitUses, DrawTheSameDropoutMasksWhenTheyAreRecomputed) {
  const std::vector<at::Tensor> kept = masks_of_two_uses(Parts::Kept);
  const auto expect_masks = [&](Parts recomputed, const std::vector<std::size_t>& uses) {
    const std::vector<at::Tensor> masks = masks_of_two_uses(recomputed);
    ASSERT_EQ(masks.size(), uses.size());
    for (std::size_t i = 0; i < uses.size(); ++i)
      EXPECT_TRUE(at::equal(masks[i], kept[uses[i]])) << "mask " << i;
  };
  expect_masks(Parts::EachUse, {0, 1, 1, 0});  // the backward pass begins with the last use
  expect_masks(Parts::BothUses, {0, 1, 0, 1});
}

/// An operation before the one with the gradient of `weight` keeps weight.detach().
struct DetachedImpl : torch::nn::Module {
  DetachedImpl() : weight(register_parameter("weight", torch::full({2048}, 0.5))) {}
  at::Tensor forward(const at::Tensor& x) { return x * weight.detach() + weight; }
  at::Tensor weight;
};

struct DetachedModelImpl : torch::nn::Module {
  DetachedModelImpl()
      : in(register_parameter("in", torch::ones({2048}))),
        unit(register_module("unit", Sharded<DetachedImpl>())) {}
  at::Tensor in;
  Sharded<DetachedImpl> unit;
};

TEST(UnitUses, KeepTheirParametersUntilTheirBackwardPassIsDone) {
  std::vector<double> norms;
  for (const std::uint32_t stage : {2u, 3u}) {
    const auto single = make_single_communicator();
    const auto model = std::make_shared<DetachedModelImpl>();
    Engine engine(model, *single, sgd_config(stage));
    const auto loss = [&](const MicroBatch&) { return model->unit(model->in).pow(2).mean(); };
    norms.push_back(engine.train_batch(loss).gradient_norm);
  }
  EXPECT_GT(norms[0], 0);
  EXPECT_EQ(norms[0], norms[1]);
}

}  // namespace
}  // namespace unishard::test
