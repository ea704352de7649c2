// Offload from a device to the memory of its host, on a device that finds missing events: what
// crosses between the two, when, and through which memory.
#include "unishard/trainer/gpt.hpp"
#include "unishard/trainer/memory_plan.hpp"
#include "unishard/trainer/trace.hpp"

#include "guarded_device/allocator.hpp"
#include "guarded_device/streams.hpp"
#include "guarded_run.hpp"
#include "state/state_array.hpp"
#include "temp_dir.hpp"

#include <ATen/ops/arange.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace unishard::test {
namespace {

using namespace trainer;
using testing::HasSubstr;
using trainer::Stream;

struct OffloadedJob {
  std::uint32_t stage;
  bool with_parameters = false;
};

void PrintTo(const OffloadedJob& job, std::ostream* out) {
  *out << "stage" << job.stage << (job.with_parameters ? "WithParameters" : "");
}

/// One micro-batch a step and rank, so that every gradient crosses once.
Config offloaded(const OffloadedJob& job, DType compute = DType::BFloat16) {
  Config config = small_config(job.stage, compute);
  config.batch = {.train = 2, .micro = 2, .accumulation = {}};
  config.offload_optimizer.residence = Residence::Host;
  if (job.with_parameters) config.offload_param.residence = Residence::Host;
  config.zero.param_persistence_threshold = 0;
  return config;
}

class OffloadFromTheDevice : public testing::TestWithParam<OffloadedJob> {};

TEST_P(OffloadFromTheDevice, HasTheBitsOfTrainingOnTheHost) {
  for (const std::uint32_t world : {1u, 2u}) {
    for (const DType compute : {DType::Float32, DType::BFloat16, DType::Float16}) {
      Config config = offloaded(GetParam(), compute);
      config.batch = {.train = 12, .micro = 2, .accumulation = {}};
      const auto body = [](Engine& engine, SmallModel& model, Ran& ran) {
        train(engine, model, 3, ran);
      };
      expect_same(run(Where::Device, world, config, body),
                  run(Where::Host, world, small_config(GetParam().stage, compute), body));
    }
  }
}

/// Of each four steps, the gradients of two are multiplied, so that they are clipped or overflow.
LossFunction wavering(SmallModel& model, int step, double factor) {
  return [&model, step, factor](const MicroBatch& batch) {
    const at::Tensor loss = model->loss(batch);
    return step % 4 >= 2 ? loss * factor : loss;
  };
}

/// Returns what 8 such steps gave; adds those with updates ahead that stood to `ahead`.
Ran train_wavering(Where where, std::uint32_t world, Config config, double clipping, double factor,
                   int& ahead) {
  config.gradient_clipping = clipping;
  config.non_finite = NonFinite::Skip;
  config.canonical_order = true;
  return run(where, world, config, [&](Engine& engine, SmallModel& model, Ran& ran) {
    for (int i = 0; i < 8; ++i) {
      const StepStats stats = engine.train_batch(wavering(model, i, factor));
      if (!stats.skipped) ran.numbers.insert(ran.numbers.end(), {stats.loss, stats.gradient_norm});
      if (world == 1) ahead += stats.units_ahead > 0;
    }
  });
}

/// As after files, a step after one that is clipped or left out is updated in the plain order.
TEST_P(OffloadFromTheDevice, HasThemWithUpdatesAheadThatStandAndBeginAnew) {
  for (const std::uint32_t world : {1u, 2u}) {
    for (const auto& [clipping, factor] : {std::pair{20.0, 1000.0}, std::pair{0.0, 1e39}}) {
      Config config = offloaded(GetParam(), DType::BFloat16);
      config.batch = {.train = 4, .micro = 2, .accumulation = {}};
      int ahead = 0, none = 0;
      const Ran plain = train_wavering(Where::Device, world, config, clipping, factor, none);
      EXPECT_EQ(none, 0);
      config.offload_optimizer.super_offload = true;
      expect_same(train_wavering(Where::Device, world, config, clipping, factor, ahead), plain);
      EXPECT_EQ(ahead, world == 1 ? 3 : 0);
    }
  }
}

/// Returns the next loss of a run on the host that continues from a checkpoint.
Ran resumed(const Config& config, const Path& folder) {
  return run(Where::Host, 1, config, [&](Engine& engine, SmallModel& model, Ran& ran) {
    engine.load_checkpoint(folder);
    train(engine, model, 1, ran);
  });
}

/// The arrays that a save copies are those that the second update after it writes.
TEST_P(OffloadFromTheDevice, ASaveHoldsItsStepWhileUpdatesRunAhead) {
  for (const DType compute : {DType::Float32, DType::BFloat16}) {
    Config config = offloaded(GetParam(), compute);
    const TempDir plain, ahead;
    run(Where::Device, 1, config, [&](Engine& engine, SmallModel& model, Ran& ran) {
      train(engine, model, 3, ran);
      engine.save_checkpoint({.folder = plain.path()}).wait();
    });
    config.offload_optimizer.super_offload = true;
    run(Where::Device, 1, config, [&](Engine& engine, SmallModel& model, Ran& ran) {
      train(engine, model, 3, ran);
      const SaveHandle saved =
          engine.save_checkpoint({.folder = ahead.path(), .asynchronous = true});
      train(engine, model, 3, ran);
      saved.wait();
    });
    const Config on_host = small_config(GetParam().stage, compute);
    expect_same(resumed(on_host, ahead.path()), resumed(on_host, plain.path()));
  }
}

/// Their room is counted, and planned.
TEST_P(OffloadFromTheDevice, UpdatesAheadTakeTwoOfTheState) {
  Config config = offloaded(GetParam());
  config.offload_optimizer.super_offload = true;
  run(Where::Device, 1, config, [](Engine& engine, SmallModel& model, Ran& ran) {
    train(engine, model, 1, ran);
    const MemoryReport report = engine.memory();
    EXPECT_EQ(report.updates_ahead, report.optimizer * 3 / 2);
  });
}

/// Returns the bytes of the device that a run has after a step, and the elements of its state.
std::pair<std::int64_t, std::int64_t> bytes_on_device(Config config, double share) {
  config.offload_optimizer.ratio = share;
  std::pair<std::int64_t, std::int64_t> result;
  run(Where::Device, 1, config, [&](Engine& engine, SmallModel& model, Ran& ran) {
    train(engine, model, 1, ran);
    result = {guarded::bytes_in_tensors(), engine.memory().optimizer / 8};
  });
  return result;
}

/// Master, two moments and the sums of gradients: 16 bytes for each element that leaves.
TEST_P(OffloadFromTheDevice, TheRatioSaysHowMuchLeaves) {
  if (GetParam().with_parameters) GTEST_SKIP() << "the parameters leave whatever the ratio is";
  const Config config = offloaded(GetParam());
  const auto [whole, elements] = bytes_on_device(config, 0);
  const std::int64_t half = bytes_on_device(config, 0.5).first;
  const std::int64_t none = bytes_on_device(config, 1).first;
  EXPECT_NEAR(static_cast<double>(whole - none), 16.0 * static_cast<double>(elements),
              static_cast<double>(elements));
  EXPECT_LT(half, whole - 4 * elements);
  EXPECT_GT(half, none + 4 * elements);
}

/// Copies that the host waits for do not overlap with anything, and those from other memory than
/// pinned have a few percent of the speed. A step has a few small ones: its data and its numbers.
constexpr std::uint64_t kSmall = 512;

TEST_P(OffloadFromTheDevice, AStepCopiesGradientsAndWeightsOnceThroughPinnedMemory) {
  run(Where::Device, 1, offloaded(GetParam()), [](Engine& engine, SmallModel& model, Ran& ran) {
    train(engine, model, 1, ran);
    const guarded::CopiedBytes before = guarded::copied_bytes();
    train(engine, model, 1, ran);
    const guarded::CopiedBytes after = guarded::copied_bytes();
    const auto sums = static_cast<std::uint64_t>(engine.memory().optimizer) / 2;
    EXPECT_LE(after.to_host - before.to_host, kSmall);
    EXPECT_LE(after.to_device - before.to_device, kSmall);
    EXPECT_EQ(after.to_host_behind - before.to_host_behind, sums);
    // Two bytes for each four of the gradients' sums: after the update, or for each gather.
    const std::uint64_t gathers = GetParam().with_parameters ? 2 : 1;
    EXPECT_LE(after.to_device_behind - before.to_device_behind, gathers * sums / 2);
    EXPECT_GE(after.to_device_behind - before.to_device_behind, sums / 2);
  });
}

TEST_P(OffloadFromTheDevice, MoreMicroBatchesBringTheSumsBackBetweenThem) {
  Config config = offloaded(GetParam());
  config.batch = {.train = 6, .micro = 2, .accumulation = {}};
  run(Where::Device, 1, config, [&](Engine& engine, SmallModel& model, Ran& ran) {
    train(engine, model, 1, ran);
    const guarded::CopiedBytes before = guarded::copied_bytes();
    train(engine, model, 1, ran);
    const guarded::CopiedBytes after = guarded::copied_bytes();
    EXPECT_LE(after.to_host - before.to_host, kSmall);
    EXPECT_LE(after.to_device - before.to_device, kSmall);
    const auto sums = static_cast<std::uint64_t>(engine.memory().optimizer) / 2;
    const std::uint64_t folds = engine.config().folds_every_micro_batch() ? 3 : 1;
    EXPECT_EQ(after.to_host_behind - before.to_host_behind, folds * sums);
  });
}

TEST(OffloadToFilesFromTheDevice, ArraysOfSeveralPiecesAreWrittenAndRead) {
  const TempDir files;
  const auto runtime = make_guarded_runtime({});
  const at::Device device = runtime->device();
  const auto copies = std::make_shared<detail::FileCopies>(device);
  const auto file = detail::BlockFile::make(posix_storage(), files.path(), 12288);
  constexpr std::int64_t kElements = 5'000'001, kFirst = 1'234'567;
  const detail::StateArray array(file, copies, kElements, at::kFloat);
  at::Tensor read;
  runtime->run(Stream::Communication, "copies", [&] {
    const at::Tensor all = at::arange(kElements, at::device(device).dtype(at::kFloat));
    array.write(0, all);
    array.write(kFirst, all.narrow(0, 0, kElements - kFirst).to(at::kDouble));
    read = array.on(device);
  });
  runtime->finish(Stream::Communication);
  const at::Tensor all = at::arange(kElements, at::kFloat);
  const at::Tensor expected = all.clone();
  expected.narrow(0, kFirst, kElements - kFirst).copy_(all.narrow(0, 0, kElements - kFirst));
  EXPECT_TRUE(at::equal(read.cpu(), expected));
  EXPECT_TRUE(at::equal(array.values(), expected));
  EXPECT_THAT(guarded::take_violations(), testing::IsEmpty());
}

/// Three steps of which the last two copy next to nothing but through pinned memory.
auto steps_through_pinned_memory(std::uint32_t world) {
  return [world](Engine& engine, SmallModel& model, Ran& ran) {
    train(engine, model, 1, ran);
    const guarded::CopiedBytes before = guarded::copied_bytes();
    train(engine, model, 2, ran);
    const guarded::CopiedBytes after = guarded::copied_bytes();
    if (world > 1) return;  // Gloo's sums pass the host
    EXPECT_LE(after.to_host - before.to_host, 12 * kSmall);
    EXPECT_LE(after.to_device - before.to_device, 12 * kSmall);
  };
}

/// With the bits of state in the host's memory.
TEST(OffloadToFilesFromTheDevice, EveryStepCopiesThroughPinnedMemoryAlone) {
  for (const std::uint32_t stage : {2u, 3u}) {
    for (const std::uint32_t world : {1u, 2u}) {
      const TempDir files;
      Config config = small_config(stage, DType::BFloat16);
      config.zero.param_persistence_threshold = 0;
      const auto body = steps_through_pinned_memory(world);
      const Ran expected = run(Where::Host, world, config, body);
      config.offload_optimizer = {.residence = Residence::File, .nvme_path = files.path().string()};
      if (stage == 3)
        config.offload_param = {.residence = Residence::File, .nvme_path = files.path().string()};
      config.aio.block_size = 4096;
      expect_same(run(Where::Device, world, config, body), expected);
    }
  }
}

/// Whole matrices are gathered on the device, whatever holds the momenta.
TEST(OffloadFromTheDeviceWithMuon, HasTheBitsOfTheHostThroughPinnedMemoryAlone) {
  for (const Residence residence : {Residence::Device, Residence::Host, Residence::File}) {
    for (const std::uint32_t world : {1u, 2u}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(residence) << " on " << world);
      const TempDir files;
      Config config = small_config(2, DType::BFloat16);
      config.optimizer = "Muon";
      config.adam = config.hyper;
      config.hyper.momentum = 0.95;
      const auto body = steps_through_pinned_memory(world);
      const Ran expected = run(Where::Host, world, config, body);
      config.offload_optimizer = {.residence = residence, .nvme_path = files.path().string()};
      config.aio.block_size = 4096;
      expect_same(run(Where::Device, world, config, body), expected);
    }
  }
}

/// The message of what ends two steps when a stream does not wait, or is not waited for.
std::string problem_without_waits(const GuardedRuntimeOptions& options) {
  std::string message;
  run_threads(1, [&](Communicator& communicator) {
    const Config config = offloaded({.stage = 2});
    const auto runtime = make_guarded_runtime(options);
    SmallModel model = build(placement_for(config, communicator, runtime->device()));
    Engine engine(model.ptr(), communicator, config, {.runtime = runtime.get()});
    try {
      step(engine, model);
      step(engine, model);
    } catch (const std::exception& error) {
      message = error.what();
    }
  });
  for (const std::string& each : guarded::take_violations()) message += "\n" + each;
  return message;
}

TEST(OffloadWaits, ThoseOfGradientsThatAreMissingAreFoundAtOnce) {
  EXPECT_THAT(problem_without_waits({.deaf = Stream::Copy}), HasSubstr("guarded: RACE"));
  EXPECT_THAT(problem_without_waits({.mute = Stream::Copy}), HasSubstr("guarded: "));
  EXPECT_EQ(problem_without_waits({}), "");
}

/// Where LibTorch can record when a device has done its work.
TEST(OffloadTrace, GradientsLeaveTheDeviceDuringTheBackwardPass) {
  if (TORCH_VERSION_MAJOR < 2) GTEST_SKIP() << "traces of devices need LibTorch 2.4";
  Trace trace;
  run_threads(1, [&](Communicator& communicator) {
    const Config config = offloaded({.stage = 2});
    const auto runtime = make_guarded_runtime({.trace = &trace});
    SmallModel model = build(placement_for(config, communicator, runtime->device()));
    Engine engine(model.ptr(), communicator, config, {.runtime = runtime.get()});
    step(engine, model);
    runtime->complete_trace();
  });
  std::vector<Trace::Span> spans = trace.spans();
  std::ranges::sort(spans, {}, &Trace::Span::begin);
  const auto find = [&](const std::string& name) {
    return std::ranges::find(spans, name, &Trace::Span::name);
  };
  EXPECT_LT(find("gradients of unit block1"), find("reduce unit block0"));
  EXPECT_LT(find("reduce unit block0"), spans.end());
  EXPECT_LT(find("reduce the root unit"), find("update unit block1"));
}

constexpr GptConfig kShape{.vocabulary = 1000, .context = 32, .layers = 2, .width = 128};
constexpr std::int64_t kBlock = 12 * 128 * 128 + 13 * 128;
constexpr std::int64_t kOther = 1000 * 128 + 32 * 128 + 2 * 128;

/// Two hundredths for the padding of units.
void expect_near(std::int64_t planned, std::int64_t held) {
  EXPECT_LE(std::abs(planned - held), held / 50) << planned << " planned, " << held << " held";
}

std::int64_t planned(const std::vector<PlannedMemory>& plan, std::string_view name,
                     Residence place) {
  std::int64_t bytes = 0;
  for (const PlannedMemory& part : plan)
    if (part.name == name && part.place == place) bytes += part.bytes;
  return bytes;
}

TEST_P(OffloadFromTheDevice, ItsPlanIsWhatTheEngineHolds) {
  Config config = offloaded(GetParam());
  config.offload_optimizer.super_offload = GetParam().stage == 2;
  const auto plan =
      plan_memory(config, {.parameters = 2 * kBlock + kOther, .largest_unit = kBlock});
  run_threads(1, [&](Communicator& communicator) {
    const auto runtime = make_runtime(Where::Device, communicator);
    const auto model = [&] {
      const std::lock_guard lock(construction_mutex());
      const ConstructionScope scope(placement_for(config, communicator, runtime->device()));
      return make_language_model(kShape);
    }();
    Engine engine(model, communicator, config, {.runtime = runtime.get()});
    engine.train_batch([&](const MicroBatch&) {
      return model->loss(at::arange(2 * 17).view({2, 17}).to(runtime->device()));
    });
    const MemoryReport held = engine.memory();
    expect_near(planned(plan, "updates ahead", Residence::Host), held.updates_ahead);
    expect_near(planned(plan, "gradient sums", Residence::Host), held.gradients);
    EXPECT_EQ(planned(plan, "gradient sums", Residence::Device), 0);
    expect_near(planned(plan, "master weights", Residence::Host) +
                    planned(plan, "optimizer states", Residence::Host) +
                    planned(plan, "shards of parameters", Residence::Host) +
                    planned(plan, "shards of parameters", Residence::Device),
                held.master + held.optimizer);
    const std::int64_t waiting =
        planned(plan, "gradients to be reduced, at most", Residence::Device);
    EXPECT_LE(held.reducing_peak, waiting + waiting / 50);
  });
}

INSTANTIATE_TEST_SUITE_P(Jobs, OffloadFromTheDevice,
                         testing::Values(OffloadedJob{1}, OffloadedJob{2}, OffloadedJob{3},
                                         OffloadedJob{3, true}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace unishard::test
