// Steps whose loss or gradient is NaN or infinite.
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "small_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace unishard::test {
namespace {

using namespace trainer;
using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The gradient of one parameter of one micro-batch is NaN, and its loss is a number.
LossFunction with_bad_gradient(SmallModel& model, std::int64_t bad_micro_batch) {
  return [&model, bad_micro_batch](const MicroBatch& batch) {
    at::Tensor loss = model->loss(batch);
    if (batch.id != bad_micro_batch) return loss;
    const at::Tensor& bias = model->in->bias;
    bias.register_hook([](const at::Tensor& gradient) { return gradient * kNan; });
    return loss;
  };
}

class NonFiniteStep : public testing::TestWithParam<std::uint32_t> {
 protected:
  Config config_ = small_config(GetParam());
};

TEST_P(NonFiniteStep, EndsWithAnErrorOnEveryRankAndChangesNothing) {
  with_engine(2, config_, {}, [](Engine& engine, SmallModel& model, Communicator& communicator) {
    step(engine, model);
    const Parameters before = parameters_of(engine, model);
    const std::uint64_t samples = engine.samples_seen();
    const Error error = error_of([&] {
      engine.train_batch([&](const MicroBatch& batch) {
        const at::Tensor loss = model->loss(batch);
        return batch.id == 3 ? loss * kNan : loss;
      });
    });
    EXPECT_THAT(error, Fails(ErrorCode::NotFinite)) << communicator.rank();
    EXPECT_THAT(error.what(), HasSubstr("step 2 was not applied: the loss of micro-batch 3 (rank "
                                        "1) is nan; the gradient of in.weight (unit root)"));
    EXPECT_EQ(engine.global_steps(), 1);
    EXPECT_EQ(engine.samples_seen(), samples);
    expect_equal(before, parameters_of(engine, model));
  });
}

TEST_P(NonFiniteStep, OfAGradientNamesTheParameter) {
  for (const std::uint32_t ranks :
       {2u, 3u, 6u}) {  // with more ranks, some hold none of a parameter
    with_engine(ranks, config_, {}, [](Engine& engine, SmallModel& model, Communicator&) {
      const Error error = error_of([&] { engine.train_batch(with_bad_gradient(model, 1)); });
      EXPECT_THAT(error.what(),
                  HasSubstr("step 1 was not applied: the gradient of in.bias (unit root) is not "
                            "finite on rank "));
    });
  }
}

TEST_P(NonFiniteStep, AfterAnErrorTheNextStepHasTheBitsOfARunWithoutIt) {
  Parameters undisturbed, disturbed;
  for (Parameters* result : {&undisturbed, &disturbed}) {
    with_engine(2, config_, {}, [&](Engine& engine, SmallModel& model, Communicator& communicator) {
      step(engine, model);
      if (result == &disturbed) {
        EXPECT_THROW(
            engine.train_batch([&](const MicroBatch& batch) { return model->loss(batch) * kNan; }),
            Error);
      }
      step(engine, model);
      const Parameters values = parameters_of(engine, model);
      if (communicator.rank() == 0) *result = values;
    });
  }
  expect_equal(undisturbed, disturbed);
}

TEST_P(NonFiniteStep, IsSkippedAndCountedWhereTheConfigurationSaysSo) {
  config_.non_finite = NonFinite::Skip;
  with_engine(2, config_, {}, [](Engine& engine, SmallModel& model, Communicator&) {
    const Parameters before = parameters_of(engine, model);
    const StepStats stats = engine.train_batch(
        [&](const MicroBatch& batch) { return model->loss(batch) * (batch.id == 0 ? kNan : 1); });
    EXPECT_TRUE(stats.skipped);
    EXPECT_EQ(stats.step, 0);
    EXPECT_EQ(engine.skipped_steps(), 1);
    EXPECT_EQ(engine.samples_seen(), 12u);
    expect_equal(before, parameters_of(engine, model));
    EXPECT_FALSE(step(engine, model).skipped);
    EXPECT_EQ(engine.global_steps(), 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, NonFiniteStep, testing::Range(0u, 4u));

}  // namespace
}  // namespace unishard::test
