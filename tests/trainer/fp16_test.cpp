// fp16 with loss scaling: the same bits everywhere, overflows that every rank skips, and a scale
// that is saved and resumed.
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"
#include "unishard/trainer/fold.hpp"

#include "expect.hpp"
#include "small_model.hpp"
#include "temp_dir.hpp"

#include <bit>
#include <cmath>
#include <cstring>

namespace unishard::test {
namespace {

using namespace trainer;

Config fp16_config(std::uint32_t stage) {
  Config config = small_config(stage, DType::Float16);
  config.canonical_order = true;
  config.fp16 = {.initial_scale_power = 10, .loss_scale_window = 2, .hysteresis = 1};
  return config;
}

/// Overflows in the given step (1 is the first) on one micro-batch, that is, on one rank.
LossFunction overflowing(SmallModel& model, std::int64_t step) {
  return [&model, step](const MicroBatch& batch) {
    const at::Tensor loss = model->loss(batch);
    return batch.step == step - 1 && batch.id == 1 ? loss * 1e30 : loss;
  };
}

TEST(Fp16, EveryWorldSizeAndStageHasTheSameBits) {
  std::vector<double> expected;
  for (const std::uint32_t world : {1u, 2u, 3u}) {
    for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
      std::vector<double> seen;
      with_engine(
          world, fp16_config(stage), {},
          [&](Engine& engine, SmallModel& model, Communicator& communicator) {
            for (int i = 0; i < 4; ++i) {
              const StepStats stats = step(engine, model);
              EXPECT_FALSE(stats.skipped);
              if (communicator.rank() == 0)
                seen.insert(seen.end(), {stats.loss, stats.gradient_norm, stats.loss_scale});
            }
          });
      if (expected.empty()) expected = seen;
      EXPECT_EQ(seen, expected) << "W " << world << " stage " << stage;
    }
  }
}

TEST(Fp16, ParametersHoldHalfPrecisionValues) {
  with_engine(2, fp16_config(3), {}, [](Engine& engine, SmallModel& model, Communicator&) {
    step(engine, model);
    for (const auto& [name, value] : parameters_of(engine, model))
      EXPECT_TRUE(at::equal(value.to(at::kHalf).to(value.scalar_type()), value)) << name;
  });
}

TEST(Fp16, TheScaleDoesNotChangeWhatIsLearned) {
  std::vector<double> norms;
  for (const std::int64_t power : {0, 8}) {  // powers of two, and no gradient is subnormal
    Config config = fp16_config(2);
    config.fp16.initial_scale_power = power;
    with_engine(1, config, {}, [&](Engine& engine, SmallModel& model, Communicator&) {
      norms.push_back(step(engine, model).gradient_norm);
    });
  }
  EXPECT_NEAR(norms[0], norms[1], 1e-3 * norms[0]);
}

TEST(Fp16, AnOverflowIsSkippedOnAllRanksAndHalvesTheScale) {
  for (const std::uint32_t stage : {0u, 3u}) {
    with_engine(2, fp16_config(stage), {}, [](Engine& engine, SmallModel& model, Communicator&) {
      step(engine, model);
      const Parameters before = parameters_of(engine, model);
      const StepStats bad = engine.train_batch(overflowing(model, 2));
      EXPECT_TRUE(bad.skipped);
      EXPECT_EQ(bad.loss_scale, 1024);
      EXPECT_EQ(engine.global_steps(), 1);
      EXPECT_EQ(engine.skipped_steps(), 1);
      expect_equal(parameters_of(engine, model), before);
      EXPECT_EQ(step(engine, model).loss_scale, 512);
    });
  }
}

TEST(Fp16, AStaticScaleStays) {
  Config config = fp16_config(2);
  config.fp16.loss_scale = 128;
  with_engine(1, config, {}, [](Engine& engine, SmallModel& model, Communicator&) {
    EXPECT_TRUE(engine.train_batch(overflowing(model, 1)).skipped);
    EXPECT_EQ(step(engine, model).loss_scale, 128);
  });
}

TEST(Fp16, AnOverflowAtTheSmallestScaleEndsTheRun) {
  Config config = fp16_config(2);
  config.fp16.initial_scale_power = 0;
  with_engine(2, config, {}, [](Engine& engine, SmallModel& model, Communicator&) {
    const Error error = error_of([&] { engine.train_batch(overflowing(model, 1)); });
    EXPECT_EQ(error.code(), ErrorCode::NotFinite);
    EXPECT_EQ(engine.skipped_steps(), 0) << "the state is as before the step";
    EXPECT_EQ(engine.samples_seen(), 0u);
    EXPECT_EQ(step(engine, model).loss_scale, 1);
  });
}

TEST(Fp16, ASavedRunResumesWithItsScaleAtAnotherPlace) {
  const TempDir temp;
  const Path folder = temp.path() / "run";
  std::vector<double> expected, resumed;
  const auto note = [](std::vector<double>& into, const StepStats& stats) {
    into.insert(into.end(), {stats.loss, stats.gradient_norm, stats.loss_scale});
  };
  with_engine(2, fp16_config(2), {},
              [&](Engine& engine, SmallModel& model, Communicator& communicator) {
                step(engine, model);
                engine.train_batch(overflowing(model, 2));
                engine.save_checkpoint({.folder = folder, .asynchronous = true}).wait();
                for (int i = 0; i < 3; ++i) {
                  const StepStats stats = step(engine, model);
                  if (communicator.rank() == 0) note(expected, stats);
                }
              });
  with_engine(3, fp16_config(3), {},
              [&](Engine& engine, SmallModel& model, Communicator& communicator) {
                EXPECT_TRUE(engine.load_checkpoint(folder).notes.empty());
                EXPECT_EQ(engine.skipped_steps(), 1);
                for (int i = 0; i < 3; ++i) {
                  const StepStats stats = step(engine, model);
                  if (communicator.rank() == 0) note(resumed, stats);
                }
              });
  EXPECT_EQ(expected, resumed);
  const auto source = converters::open_source(posix_storage(), folder);
  const Catalog& catalog = source->catalog();
  EXPECT_EQ(catalog.loss_scaler["cur_scale"], 512);
  for (const TensorInfo& tensor : catalog.tensors) {
    if (tensor.state != state::kWeights && tensor.state != state::kBuffer) continue;
    if (tensor.fqn == "counter") continue;
    EXPECT_EQ(tensor.dtype, DType::Float16) << tensor.label();
    EXPECT_EQ(tensor.derived, catalog.find(tensor.fqn, state::kFp32).has_value()) << tensor.label();
  }
}

TEST(FoldAdd, WidensEveryHalfExactly) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    float sum = 0;
    fold_add({&sum, 1}, DType::Float16, std::as_bytes(std::span(&half, 1)));
    const float expected = static_cast<float>(c10::Half(half, c10::Half::from_bits()));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(sum)) << bits;
    } else {
      EXPECT_EQ(sum, expected) << bits;
    }
  }
}

/// Remembers what it was given.
struct SeeingImpl : torch::nn::Module {
  SeeingImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& ids) {
    seen = x.detach();
    seen_ids = ids;
    return linear(x.to(linear->weight.scalar_type()));
  }
  torch::nn::Linear linear;
  at::Tensor seen, seen_ids;
};

struct OuterSeeingImpl : SeeingImpl {
  OuterSeeingImpl() : inner(register_module("inner", Sharded<SeeingImpl>())) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& ids) {
    return SeeingImpl::forward(x, ids) + inner(at::full({2, 4}, 0.1), ids);
  }
  Sharded<SeeingImpl> inner;
};

struct SeeingModelImpl : torch::nn::Module {
  SeeingModelImpl() : outer(register_module("outer", Sharded<OuterSeeingImpl>())) {}
  Sharded<OuterSeeingImpl> outer;
};

TEST(Fp16, AutoCastRoundsTheFloatingInputsOfOuterUnits) {
  const auto is_rounded = [](const at::Tensor& x) {
    return at::equal(x.to(at::kHalf).to(at::kDouble), x.to(at::kDouble));
  };
  for (const bool auto_cast : {false, true}) {
    const auto single = make_single_communicator();
    const auto model = std::make_shared<SeeingModelImpl>();
    Config config = fp16_config(3);
    config.fp16.auto_cast = auto_cast;
    Engine engine(model, *single, config);
    engine.train_batch([&](const MicroBatch&) {
      return model->outer(at::full({2, 4}, 0.1), at::full({2}, 70000)).to(at::kFloat).sum();
    });
    EXPECT_EQ(is_rounded(model->outer->seen), auto_cast);
    EXPECT_FALSE(is_rounded(model->outer->inner->seen)) << "its caller is a unit";
    EXPECT_EQ(model->outer->seen_ids.scalar_type(), at::kLong);
  }
}

}  // namespace
}  // namespace unishard::test
