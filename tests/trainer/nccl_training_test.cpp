// The engine trains over NCCL with the host's bits, and tells what failed.
#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "nccl_threads.hpp"
#include "small_model.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>

namespace unishard::test {
namespace {

using namespace trainer;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using trainer::Stream;

/// Trains, saves, trains while the save is written, goes back to the saved state, and evaluates.
Ran train(Communicator& communicator, Runtime& runtime, const Config& config, const Path& folder) {
  SmallModel model = build(placement_for(config, communicator, runtime.device()));
  Engine engine(model.ptr(), communicator, config, {.runtime = &runtime});
  Ran ran;
  const auto train_step = [&] {
    const StepStats stats = step(engine, model);
    ran.numbers.insert(ran.numbers.end(), {stats.loss, stats.gradient_norm});
  };
  train_step();
  SaveHandle save = engine.save_checkpoint({.folder = folder, .asynchronous = true});
  train_step();
  save.wait();
  engine.load_checkpoint(folder);
  train_step();
  const auto loss = [&](const MicroBatch& batch) { return model->loss(batch); };
  ran.numbers.push_back(engine.evaluate(loss, 4));
  for (const auto& [name, value] : parameters_of(engine, model)) ran.parameters[name] = value.cpu();
  engine.save_checkpoint({.folder = folder});
  return ran;
}

class NcclTraining : public NcclTest, public testing::WithParamInterface<std::uint32_t> {
 protected:
  static Ran train_on_host(std::uint32_t world, const Config& config, const Path& folder) {
    Ran first;
    run_threads(world, [&](Communicator& communicator) {
      const auto runtime = make_host_runtime();
      Ran ran = train(communicator, *runtime, config, folder);
      if (communicator.rank() == 0) first = std::move(ran);
    });
    return first;
  }
  static Ran train_over_nccl(std::uint32_t world, const Config& config, const Path& folder,
                             const NcclRankOptions& options = {}) {
    Ran first;
    run_nccl_ranks(
        world,
        [&](const NcclRank& rank) {
          Ran ran = train(*rank.group, *rank.runtime, config, folder);
          if (rank.group->rank() == 0) first = std::move(ran);
        },
        options);
    return first;
  }
};
INSTANTIATE_TEST_SUITE_P(Stage, NcclTraining, testing::Values(0u, 1u, 2u, 3u),
                         testing::PrintToStringParamName());

TEST_P(NcclTraining, HasTheHostsBits) {
  const std::pair<std::uint32_t, DType> runs[] = {{1, DType::Float16},
                                                  {2, DType::Float32},
                                                  {2, DType::BFloat16},
                                                  {3, DType::Float32},
                                                  {3, DType::BFloat16}};
  for (const auto& [world, compute] : runs) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", world, name_of(compute)));
    const Config config = small_config(GetParam(), compute);
    const TempDir folder;
    const Ran here = train_on_host(world, config, folder.path() / "host");
    const Ran there = train_over_nccl(world, config, folder.path() / "nccl");
    expect_same(there, here);
    EXPECT_EQ(identity_of(folder.path() / "nccl"), identity_of(folder.path() / "host"));
    EXPECT_THAT(guarded::take_violations(), IsEmpty());
  }
}

TEST_P(NcclTraining, WithFastSumsComesClose) {
  Config config = small_config(GetParam());
  const TempDir folder;
  const Ran here = train_on_host(3, config, folder.path() / "host");
  config.sum = Sum::Fast;
  const Ran there = train_over_nccl(3, config, folder.path() / "nccl");
  ASSERT_EQ(there.numbers.size(), here.numbers.size());
  for (std::size_t i = 0; i < here.numbers.size(); ++i)
    EXPECT_NEAR(there.numbers[i], here.numbers[i], 1e-4 * here.numbers[i]);
  EXPECT_THAT(guarded::take_violations(), IsEmpty());
}

TEST_P(NcclTraining, WithoutAStreamsWaitsIsFound) {
  for (const Stream deaf : {Stream::Compute, Stream::Communication}) {
    const TempDir folder;
    std::string message;
    try {
      const std::uint32_t world = GetParam() == 0 ? 2 : 1;  // one rank has no collectives there
      train_over_nccl(world, small_config(GetParam()), folder.path(), {.deaf = deaf});
    } catch (const std::exception& error) {
      message = error.what();
    }
    EXPECT_THAT(message, AllOf(HasSubstr("guarded: RACE"), HasSubstr("no event orders them")))
        << "stream " << static_cast<int>(deaf);
    guarded::take_violations();
  }
}

class NcclTrainingFailures : public NcclTest {};

/// Requires that action(engine, model), which rank 0 alone does after one step, ends with an error.
template <class Action>
void expect_missing_rank_is_told(const Action& action) {
  run_nccl_ranks(
      2,
      [&](const NcclRank& rank) {
        const Config config = small_config(3);
        SmallModel model = build(placement_for(config, *rank.group, rank.runtime->device()));
        Engine engine(model.ptr(), *rank.group, config, {.runtime = rank.runtime.get()});
        step(engine, model);
        if (rank.group->rank() == 0) {
          EXPECT_THAT(error_of([&] { action(engine, model); }),
                      Fails(ErrorCode::PeerFailed,
                            {"gathering the root unit: all-gather", "no answer within 1 s"},
                            "restart all ranks"));
        }
        rank.group->barrier();
      },
      {.timeout_seconds = 1});
  guarded::take_violations();
}

TEST_F(NcclTrainingFailures, ARankThatIsMissingEndsTheStep) {
  expect_missing_rank_is_told([](Engine& engine, SmallModel& model) { step(engine, model); });
}

TEST_F(NcclTrainingFailures, ARankThatIsMissingLeavesNoWeightsToRead) {
  expect_missing_rank_is_told(
      [](Engine& engine, SmallModel& model) { parameters_of(engine, model); });
}

/// Calls body(engine, model) on one rank, after one step.
template <class Body>
void after_a_step(const Body& body) {
  run_nccl_ranks(1, [&](const NcclRank& rank) {
    const Config config = small_config(3);
    SmallModel model = build(placement_for(config, *rank.group, rank.runtime->device()));
    Engine engine(model.ptr(), *rank.group, config, {.runtime = rank.runtime.get()});
    step(engine, model);
    body(engine, model);
  });
  guarded::take_violations();
}

TEST_F(NcclTrainingFailures, AStepOnWhatAFailedOperationGaveIsAnError) {
  after_a_step([](Engine& engine, SmallModel& model) {
    const auto loss = [&](const MicroBatch& batch) { return model->loss(batch); };
    for (bool is_last = false; !is_last;) {
      const at::Tensor value = engine.forward(loss);
      is_last = engine.is_gradient_accumulation_boundary();
      engine.backward(value);
      if (!is_last) engine.step();
    }
    fail_nccl(ncclRemoteError);
    EXPECT_THAT(error_of([&] { engine.step(); }),
                Fails(ErrorCode::PeerFailed, "NCCL: remote error", "restart all ranks"));
    EXPECT_EQ(engine.global_steps(), 1);
  });
}

TEST_F(NcclTrainingFailures, AnEvaluationOfWhatAFailedOperationGaveIsAnError) {
  after_a_step([](Engine& engine, SmallModel& model) {
    const auto loss = [&](const MicroBatch& batch) {
      const at::Tensor value = model->loss(batch);
      fail_nccl(ncclRemoteError);
      return value;
    };
    EXPECT_THAT(error_of([&] { engine.evaluate(loss, 1); }),
                Fails(ErrorCode::PeerFailed, "NCCL: remote error", "restart all ranks"));
  });
}

}  // namespace
}  // namespace unishard::test
