// Updates that begin during the backward pass ("super_offload"): the bits are those of the plain
// order, whether the updates stand or begin anew.
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "file_size_limit.hpp"
#include "small_model.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace unishard::test {
namespace {

using namespace trainer;

constexpr int kSteps = 16;
/// Of these, where half are clipped or left out: the first pair, and the second step of each other
/// pair that is neither.
constexpr int kAhead = 5;

struct AheadJob {
  std::uint32_t world;
  std::uint32_t stage;
  DType compute;
  bool has_weights_in_file = true;  ///< at stage 3: those that are gathered
};

/// Returns the loss of a step in which the gradients are multiplied. In pairs of steps they are and
/// are not, so that what is updated ahead begins anew in some steps and stands in others.
LossFunction wavering(SmallModel& model, int step, double factor) {
  return [&model, step, factor](const MicroBatch& batch) {
    const at::Tensor loss = model->loss(batch);
    return step % 4 >= 2 && batch.id == 1 ? loss * factor : loss;
  };
}

class Speculation : public testing::TestWithParam<AheadJob> {
 protected:
  Config in_memory() const {
    Config config = small_config(GetParam().stage, GetParam().compute);
    config.canonical_order = true;
    config.fp16 = {.initial_scale_power = 10, .loss_scale_window = 2, .hysteresis = 1};
    config.non_finite = NonFinite::Skip;
    return config;
  }
  Config in_files(bool ahead) const {
    Config config = in_memory();
    config.offload_optimizer = {
        .residence = Residence::File, .nvme_path = files_.path().string(), .super_offload = ahead};
    if (GetParam().stage == 3 && GetParam().has_weights_in_file)
      config.offload_param = {
          .residence = Residence::File, .nvme_path = files_.path().string(), .max_in_cpu = 0};
    config.aio.block_size = 4096;
    return config;
  }
  /// Trains with gradients of which some are multiplied by `factor`. Returns what each step gave.
  Ran train(Config config, double clipping, double factor) {
    config.gradient_clipping = clipping;
    if (clipping > 0) config.fp16.loss_scale = 1;  // multiplied gradients do not overflow
    Ran ran;
    ahead_ = skipped_ = 0;
    with_engine(GetParam().world, config, {},
                [&](Engine& engine, SmallModel& model, Communicator& group) {
                  std::vector<double> numbers;
                  for (int i = 0; i < kSteps; ++i) {
                    const StepStats stats = engine.train_batch(wavering(model, i, factor));
                    numbers.push_back(stats.loss_scale);
                    if (!stats.skipped) {  // NaN does not equal itself
                      numbers.push_back(stats.loss);
                      numbers.push_back(stats.gradient_norm);
                    }
                    if (group.rank() != 0) continue;
                    ahead_ += stats.units_ahead > 0;
                    skipped_ += stats.skipped;
                  }
                  Parameters parameters = parameters_of(engine, model);
                  if (group.rank() == 0) ran = {numbers, std::move(parameters)};
                });
    return ran;
  }

  TempDir files_;
  int ahead_ = 0;    ///< steps of rank 0 with updates that stood
  int skipped_ = 0;  ///< steps
};

TEST_P(Speculation, HasTheBitsOfThePlainOrder) {
  const Ran expected = train(in_memory(), 0, 1);
  EXPECT_EQ(ahead_, 0);
  expect_same(train(in_files(false), 0, 1), expected);
  EXPECT_EQ(ahead_, 0);
  expect_same(train(in_files(true), 0, 1), expected);
  EXPECT_EQ(ahead_, kSteps);
}

TEST_P(Speculation, HasThemWhenHalfOfTheStepsAreClipped) {
  constexpr double kClipping = 20, kFactor = 1000;
  const Ran expected = train(in_memory(), kClipping, kFactor);
  expect_same(train(in_files(true), kClipping, kFactor), expected);
  EXPECT_EQ(skipped_, 0);
  EXPECT_EQ(ahead_, kAhead);
}

TEST_P(Speculation, HasThemWhenHalfOfTheStepsOverflow) {
  constexpr double kFactor = 1e39;  // infinite in float32
  const Ran expected = train(in_memory(), 0, kFactor);
  expect_same(train(in_files(true), 0, kFactor), expected);
  EXPECT_EQ(skipped_, kSteps / 2);
  EXPECT_EQ(ahead_, kAhead);
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, Speculation,
    testing::Values(AheadJob{1, 3, DType::BFloat16}, AheadJob{2, 1, DType::BFloat16},
                    AheadJob{3, 2, DType::BFloat16}, AheadJob{2, 3, DType::Float32},
                    AheadJob{2, 3, DType::Float16}, AheadJob{2, 2, DType::Float16},
                    AheadJob{2, 3, DType::BFloat16, false}),
    [](const auto& each) {
      return fmt::format("Stage{}{}On{}{}", each.param.stage, name_of(each.param.compute),
                         each.param.world, each.param.has_weights_in_file ? "" : "InMemory");
    });

Config ahead(std::uint32_t stage, const Path& folder) {
  Config config = small_config(stage, DType::BFloat16);
  config.offload_optimizer = {
      .residence = Residence::File, .nvme_path = folder.string(), .super_offload = true};
  config.gradient_clipping = 0;  // nothing begins anew because it is clipped
  config.aio.block_size = 4096;
  return config;
}

Config plain(Config config) {
  config.offload_optimizer = {};
  return config;
}

/// Trains some steps of which one ends with an exception of the last micro-batch.
Ran train_with_failure(const Config& config) {
  Ran ran;
  with_engine(1, config, {}, [&](Engine& engine, SmallModel& model, Communicator&) {
    for (int i = 0; i < 4; ++i) {
      if (i == 2) {
        EXPECT_THROW(engine.train_batch([&](const MicroBatch& batch) {
          const at::Tensor loss = model->loss(batch);
          if (batch.id == engine.batch().global_micro_batches - 1) {
            // The first blocks to be differentiated are then updated already.
            model->in->weight.register_hook(
                [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("stop"); });
          }
          return loss;
        }),
                     std::runtime_error);
        break;
      }
      ran.numbers.push_back(step(engine, model).loss);
    }
    ran.parameters = parameters_of(engine, model);
  });
  return ran;
}

TEST(SpeculationErrors, AStepThatFailsInItsBackwardPassChangesNothing) {
  const TempDir files;
  const Config config = ahead(2, files.path());
  expect_same(train_with_failure(config), train_with_failure(plain(config)));
}

/// A penalty is differentiated by itself when the backward pass reaches the model's first layer:
/// the unit of its weight has been reduced then, and its update has begun.
Ran train_with_late_gradients(const Config& config, std::int64_t* units_ahead) {
  Ran ran;
  with_engine(2, config, {}, [&](Engine& engine, SmallModel& model, Communicator& group) {
    std::vector<double> losses;
    model->in->weight.register_hook([&](const at::Tensor& gradient) {
      const at::AutoGradMode with_gradients(true);
      const at::Tensor& weight = model->blocks[1]->inner->linear->weight;
      EXPECT_FALSE(weight.grad().defined()) << "its unit has been reduced";
      (1e-3 * weight.pow(2).sum().to(at::kFloat)).backward();
      return gradient;
    });
    for (int i = 0; i < 4; ++i) {
      const StepStats stats = step(engine, model);
      losses.push_back(stats.loss);
      if (units_ahead && group.rank() == 0) *units_ahead += stats.units_ahead;
    }
    Parameters parameters = parameters_of(engine, model);
    if (group.rank() == 0) ran = {losses, std::move(parameters)};
  });
  return ran;
}

TEST(SpeculationErrors, GradientsThatComeLateBeginTheUpdateAnew) {
  const TempDir files;
  const Config config = ahead(2, files.path());
  std::int64_t units_ahead = 0;
  expect_same(train_with_late_gradients(config, &units_ahead),
              train_with_late_gradients(plain(config), nullptr));
  EXPECT_EQ(units_ahead, 0);
}

TEST(SpeculationErrors, WithoutRoomForTwoItIsLeftOutUnlessItIsAskedFor) {
  const TempDir measured, files;
  std::int64_t bytes = 0;
  with_engine(1, ahead(3, measured.path()), {},
              [&](Engine& engine, SmallModel&, Communicator&) { bytes = engine.memory().files; });
  Config config = ahead(3, files.path());
  const FileSizeLimit limit(static_cast<std::uint64_t>(bytes) * 3 / 4);  // they are twice the state
  const Error error = error_of([&] { with_engine(1, config, {}, [](auto&&...) {}); });
  EXPECT_THAT(error, Fails(ErrorCode::NoSpace, files.path().string()));
  config.offload_optimizer.super_offload = {};
  with_engine(1, config, {}, [&](Engine& engine, SmallModel& model, Communicator&) {
    for (int i = 0; i < 2; ++i) EXPECT_EQ(step(engine, model).units_ahead, 0);
  });
}

}  // namespace
}  // namespace unishard::test
