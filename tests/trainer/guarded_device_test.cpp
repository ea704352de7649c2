// The engine on devices that find host access, released memory and missing events: it trains with
// the host's bits, and nothing is found. The last tests show that the devices do find them.
#include "guarded_device/guarded_device.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/batch_copies.hpp"
#include "unishard/trainer/causal_language_model.hpp"
#include "unishard/trainer/dropout.hpp"
#include "unishard/trainer/recompute.hpp"
#include "unishard/trainer/trace.hpp"

#include "adapted_model.hpp"
#include "expect.hpp"
#include "guarded_run.hpp"
#include "make_checkpoint.hpp"
#include "small_model.hpp"
#include "temp_dir.hpp"

#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/dropout.h>
#include <torch/version.h>

#include <algorithm>
#include <functional>
#include <future>
#include <map>
#include <set>

namespace unishard::test {
namespace {

using namespace trainer;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using trainer::Stream;

class OnTheDevice : public testing::TestWithParam<std::uint32_t> {
 protected:
  /// Calls `check` with world size and configuration, for one and two ranks and every dtype.
  template <class Check>
  static void for_each_run(const Check& check) {
    for (const std::uint32_t world : {1u, 2u}) {
      for (const DType compute : {DType::Float32, DType::BFloat16, DType::Float16}) {
        SCOPED_TRACE(fmt::format("{} ranks, {}", world, name_of(compute)));
        check(world, small_config(GetParam(), compute));
      }
    }
  }
};

TEST_P(OnTheDevice, TrainingHasTheHostsBits) {
  for_each_run([](std::uint32_t world, const Config& config) {
    const auto body = [](Engine& engine, SmallModel& model, Ran& ran) {
      train(engine, model, 3, ran);
      ran.numbers.push_back(
          engine.evaluate([&](const MicroBatch& batch) { return model->loss(batch); }, 2));
    };
    expect_same(run(Where::Device, world, config, body), run(Where::Host, world, config, body));
  });
}

TEST_P(OnTheDevice, SavesOfEveryKindHoldTheHostsState) {
  for_each_run([](std::uint32_t world, const Config& config) {
    const TempDir folder;
    const auto save_all = [&](Where where, const char* name) {
      return run(where, world, config, [&](Engine& engine, SmallModel& model, Ran& ran) {
        const auto save = [&](const char* tag, bool asynchronous, bool incremental) {
          return engine.save_checkpoint({.folder = folder.path() / name,
                                         .tag = tag,
                                         .asynchronous = asynchronous,
                                         .incremental = incremental});
        };
        train(engine, model, 1, ran);
        save("synchronous", false, false);
        const SaveHandle behind = save("asynchronous", true, false);
        train(engine, model, 1, ran);
        behind.wait();
        save("incremental", false, true);
      });
    };
    expect_same(save_all(Where::Device, "device"), save_all(Where::Host, "host"));
    for (const char* tag : {"synchronous", "asynchronous", "incremental"})
      EXPECT_EQ(identity_of(folder.path() / "device" / tag),
                identity_of(folder.path() / "host" / tag))
          << tag;
  });
}

TEST_P(OnTheDevice, TrainingContinuesFromTheHostsCheckpoint) {
  for_each_run([](std::uint32_t world, const Config& config) {
    const TempDir folder;
    const auto whole = [&](Engine& engine, SmallModel& model, Ran& ran) {
      train(engine, model, 1, ran);
      engine.save_checkpoint({.folder = folder.path()});
      ran.numbers.clear();
      train(engine, model, 2, ran);
    };
    const auto rest = [&](Engine& engine, SmallModel& model, Ran& ran) {
      engine.load_checkpoint(folder.path());
      train(engine, model, 2, ran);
    };
    const Ran expected = run(Where::Host, world, config, whole);
    expect_same(run(Where::Device, world, config, rest), expected);
  });
}

TEST_P(OnTheDevice, AStepWaitsForTheDeviceOnce) {
  run(Where::Device, 1, small_config(GetParam(), DType::BFloat16),
      [](Engine& engine, SmallModel& model, Ran& ran) {
        train(engine, model, 1, ran);
        const std::uint64_t before = guarded::host_waits();
        train(engine, model, 3, ran);
        EXPECT_EQ(guarded::host_waits() - before, 3);
      });
}

/// A model whose passes are few operations, and whose units have many parameters.
struct WideImpl : torch::nn::Module {
  struct BlockImpl : torch::nn::Module {
    BlockImpl() {
      for (int i = 0; i < kParameters; ++i) {
        const std::vector<std::int64_t> sizes =  // the others are in the group without weight decay
            i % 2 == 0 ? std::vector<std::int64_t>{64, 16 * (i + 1)}
                       : std::vector<std::int64_t>{1024};
        weights.push_back(
            register_parameter("weight" + std::to_string(i), at::full(sizes, 0.01 * (i + 1))));
      }
    }
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor sum = x;
      for (const at::Tensor& each : weights) sum = sum + (each * each).sum();
      return sum;
    }
    std::vector<at::Tensor> weights;
  };
  WideImpl() {
    for (int i = 0; i < kBlocks; ++i) {
      blocks.emplace_back();
      register_module("block" + std::to_string(i), blocks.back());
    }
  }
  at::Tensor loss() {
    at::Tensor x = at::zeros({}, blocks[0]->weights[0].options().requires_grad(false));
    for (auto& block : blocks) x = block(x);
    return x.to(at::kFloat);
  }
  static constexpr int kBlocks = 4, kParameters = 12;
  std::vector<Sharded<BlockImpl>> blocks;
};

using Amounts = std::map<std::string, std::uint64_t>;

Amounts difference(const Amounts& a, const Amounts& b) {
  Amounts left = a;
  for (const auto& [name, amount] : b) left[name] -= amount;
  std::erase_if(left, [](const auto& each) { return each.second == 0; });
  return left;
}

std::uint64_t sum_of(const Amounts& amounts) {
  std::uint64_t sum = 0;
  for (const auto& [name, amount] : amounts) sum += amount;
  return sum;
}

std::string listed(const Amounts& amounts) {
  std::string text;
  for (const auto& [name, amount] : amounts) text += fmt::format("{} {}, ", amount, name);
  return text;
}

/// What a device is given by `work`: launches and bytes, by name.
template <class Work>
std::pair<Amounts, Amounts> amounts_of(const Work& work) {
  const Amounts launches = guarded::work_counts(), bytes = guarded::work_bytes();
  work();
  return {difference(guarded::work_counts(), launches), difference(guarded::work_bytes(), bytes)};
}

/// One rank, bfloat16: the gradients of a unit are summed, its squares are summed in two kernels,
/// and it is updated in one. Besides the passes, a step moves 40 bytes for each parameter: 2 + 4 of
/// a gradient and its sum, 4 for the norm, 28 of AdamW's update, and 2 of the rounded weight.
TEST_P(OnTheDevice, AStepTakesFewKernelsAndBytesBesidesThePasses) {
  Config config = small_config(GetParam(), DType::BFloat16);
  config.batch = {.train = 2, .micro = 2, .accumulation = {}};
  config.zero.param_persistence_threshold = 0;
  run_threads(1, [&](Communicator& communicator) {
    const auto runtime = make_runtime(Where::Device, communicator);
    const auto make = [&](const Config& placed) {
      const std::lock_guard lock(construction_mutex());
      const ConstructionScope scope(placement_for(placed, communicator, runtime->device()));
      return std::make_shared<WideImpl>();
    };
    const auto plain = make(small_config(0, DType::BFloat16)), model = make(config);
    std::uint64_t parameters = 0;
    for (const auto& each : plain->parameters())
      parameters += static_cast<std::uint64_t>(each.numel());
    const auto pass = amounts_of([&] { plain->loss().backward(); });
    Engine engine(model, communicator, config, {.runtime = runtime.get()});
    const auto train = [&] {
      engine.train_batch([&](const MicroBatch&) { return model->loss(); });
    };
    train();
    const auto step = amounts_of(train);
    const Amounts launches = difference(step.first, pass.first);
    constexpr std::uint64_t kUnits = WideImpl::kBlocks, kOther = 12;
    for (const char* name : {"the gradients of a unit", "the sum of squares", "the update"})
      EXPECT_EQ(launches.at(name), kUnits) << name;
    EXPECT_LE(sum_of(launches), 3 * kUnits + kOther) << listed(launches);
    const Amounts bytes = difference(step.second, pass.second);
    EXPECT_EQ(sum_of(bytes) / parameters, 40u) << listed(bytes);
  });
  EXPECT_THAT(guarded::take_violations(), IsEmpty());
}

/// Beside the passes alone, without an update and without a norm.
TEST_P(OnTheDevice, AStepOfAGptLaunchesLittleMoreThanItsPasses) {
  Config config = small_config(GetParam(), DType::Float32);
  config.batch = {.train = 2, .micro = 2, .accumulation = {}};
  const GptConfig shape{.vocabulary = 64, .context = 16, .layers = 12, .width = 32, .heads = 2};
  run_threads(1, [&](Communicator& communicator) {
    const auto runtime = make_runtime(Where::Device, communicator);
    const auto make = [&](const Config& placed) {
      const std::lock_guard lock(construction_mutex());
      const ConstructionScope scope(placement_for(placed, communicator, runtime->device()));
      return make_language_model(shape);
    };
    const at::Tensor tokens = at::arange(2 * 17).remainder(64).view({2, 17}).to(runtime->device());
    const auto plain = make(small_config(0, DType::Float32)), model = make(config);
    plain->to(runtime->device());
    const auto passes = amounts_of([&] { plain->loss(tokens).backward(); }).first;
    Engine engine(model, communicator, config, {.runtime = runtime.get()});
    const auto train = [&] {
      engine.train_batch([&](const MicroBatch&) { return model->loss(tokens); });
    };
    train();
    const auto step = amounts_of(train).first;
    EXPECT_LE(sum_of(step), sum_of(passes) * 12 / 10) << listed(difference(step, passes));
  });
  EXPECT_THAT(guarded::take_violations(), IsEmpty());
}

/// The gradients are read once, and a few numbers come back.
TEST_P(OnTheDevice, TheNormTakesOneKernelForEachUnit) {
  run(Where::Device, 1, small_config(GetParam(), DType::BFloat16),
      [](Engine& engine, SmallModel& model, Ran& ran) {
        constexpr std::uint64_t kUnits = 5, kNumbers = 64;
        train(engine, model, 1, ran);
        const auto before = guarded::work_counts();
        const std::uint64_t bytes = guarded::copied_bytes().to_host;
        train(engine, model, 1, ran);
        auto after = guarded::work_counts();
        for (const auto& [name, count] : before) after[name] -= count;
        EXPECT_EQ(after["the sum of squares"], kUnits);
        EXPECT_EQ(after["aten::mul_.Tensor"] + after["aten::mul_"], 0u);
        EXPECT_LE(guarded::copied_bytes().to_host - bytes, kNumbers * sizeof(double));
      });
}

/// A copy to memory that is not pinned has a few percent of the speed. The flags that a save needs,
/// and the numbers of a step, are too small to matter.
TEST_P(OnTheDevice, SavesCopyTheStateToPinnedMemoryOnly) {
  constexpr std::uint64_t kSmall = 256;
  for (const DType compute : {DType::Float32, DType::BFloat16, DType::Float16}) {
    SCOPED_TRACE(name_of(compute));
    const TempDir folder;
    run(Where::Device, 1, small_config(GetParam(), compute),
        [&](Engine& engine, SmallModel& model, Ran& ran) {
          train(engine, model, 1, ran);
          for (const bool asynchronous : {false, true}) {
            const guarded::CopiedBytes before = guarded::copied_bytes();
            const SaveReport report =
                engine.save_checkpoint({.folder = folder.path(), .asynchronous = asynchronous})
                    .wait();
            const guarded::CopiedBytes after = guarded::copied_bytes();
            EXPECT_LE(after.to_host - before.to_host, kSmall) << asynchronous;
            EXPECT_GE(after.to_host_behind - before.to_host_behind + kSmall, report.bytes)
                << asynchronous;
          }
        });
  }
}

TEST_P(OnTheDevice, LoadsCopyTheStateFromPinnedMemoryOnly) {
  constexpr std::uint64_t kSmall = 256;
  for (const DType compute : {DType::Float32, DType::BFloat16}) {
    SCOPED_TRACE(name_of(compute));
    const TempDir folder;
    run(Where::Device, 1, small_config(GetParam(), compute),
        [&](Engine& engine, SmallModel& model, Ran& ran) {
          train(engine, model, 1, ran);
          const SaveReport saved = engine.save_checkpoint({.folder = folder.path()}).wait();
          const guarded::CopiedBytes before = guarded::copied_bytes();
          engine.load_checkpoint(folder.path());
          const guarded::CopiedBytes after = guarded::copied_bytes();
          EXPECT_LE(after.to_device - before.to_device, kSmall);
          EXPECT_GE(after.to_device_behind - before.to_device_behind + kSmall, saved.bytes);
        });
  }
}

TEST_P(OnTheDevice, TheReportCountsTheMemoryOfTheDevice) {
  const Config config = small_config(GetParam(), DType::BFloat16);
  run(Where::Host, 1, config, [](Engine& engine, SmallModel& model, Ran& ran) {
    train(engine, model, 1, ran);
    EXPECT_FALSE(engine.memory().device);
  });
  run(Where::Device, 1, config, [](Engine& engine, SmallModel& model, Ran& ran) {
    train(engine, model, 1, ran);
    const MemoryReport report = engine.memory();
    if (!report.device) GTEST_SKIP() << "the allocators of this LibTorch do not count";
    EXPECT_GE(report.device->allocated, report.parameters + report.master + report.optimizer);
    EXPECT_GT(report.device->allocated_peak, report.device->allocated);
    engine.reset_memory_peak();
    EXPECT_EQ(engine.memory().device->allocated_peak, report.device->allocated);
  });
}

INSTANTIATE_TEST_SUITE_P(Stage, OnTheDevice, testing::Values(0u, 1u, 2u, 3u),
                         testing::PrintToStringParamName());

struct NoisyImpl : torch::nn::Module {
  NoisyImpl() : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = dropout(linear(x).tanh(), 0.2);
    return draws_from_default ? x + torch::nn::functional::dropout(y) : x + y;
  }
  torch::nn::Linear linear;
  bool draws_from_default = false;
};

struct NoisyModelImpl : torch::nn::Module {
  NoisyModelImpl() {
    for (int i = 0; i < 3; ++i) {
      blocks.emplace_back();
      register_module("block" + std::to_string(i), blocks.back());
    }
  }
  at::Tensor loss(const MicroBatch& batch) {
    at::Tensor x = at::full({16, kWidth}, 0.1 * static_cast<double>(batch.first_sample + 1))
                       .to(blocks[0]->linear->weight.device());
    for (auto& block : blocks) {
      x = recompute ? (*recompute)([&](const at::Tensor& input) { return block(input); }, x)
                    : block(x);
    }
    return x.pow(2).mean();
  }
  std::vector<Sharded<NoisyImpl>> blocks;
  std::optional<Recompute> recompute;
};

/// The default generator belongs to the process: it is drawn from when one thread is the only rank.
std::vector<double> losses_with_noise(Where where, std::uint32_t world, std::uint32_t stage,
                                      const std::optional<RecomputeOptions>& recompute) {
  std::vector<double> losses;
  run_threads(world, [&](Communicator& communicator) {
    const Config config = small_config(stage);
    const auto runtime = make_runtime(where, communicator);
    const auto model = [&] {
      const std::lock_guard lock(construction_mutex());
      const ConstructionScope scope(placement_for(config, communicator, runtime->device()));
      return std::make_shared<NoisyModelImpl>();
    }();
    if (recompute) model->recompute.emplace(*recompute);
    for (auto& block : model->blocks) block->draws_from_default = world == 1;
    Engine engine(model, communicator, config, {.runtime = runtime.get()});
    for (int i = 0; i < 3; ++i) {
      const StepStats stats =
          engine.train_batch([&](const MicroBatch& batch) { return model->loss(batch); });
      if (communicator.rank() == 0) losses.push_back(stats.loss);
    }
  });
  EXPECT_THAT(guarded::take_violations(), IsEmpty());
  return losses;
}

TEST(GuardedDevice, RecomputingDrawsTheHostsNumbers) {
  for (const auto& [world, stage] : {std::pair{1u, 0u}, {1u, 3u}, {2u, 2u}, {2u, 3u}}) {
    const auto expected = losses_with_noise(Where::Host, world, stage, std::nullopt);
    EXPECT_EQ(losses_with_noise(Where::Device, world, stage, std::nullopt), expected);
    for (const RecomputeOptions& options :
         {RecomputeOptions{}, RecomputeOptions{.cpu_checkpointing = true}})
      EXPECT_EQ(losses_with_noise(Where::Device, world, stage, options), expected);
  }
}

using MakeModel = std::function<std::shared_ptr<CausalLanguageModel>()>;

/// Trains a language model; the losses and the norms of three steps.
std::vector<double> train_language_model(Where where, const MakeModel& make, DType compute) {
  std::vector<double> numbers;
  run_threads(1, [&](Communicator& communicator) {
    const Config config = small_config(3, compute);
    const auto runtime = make_runtime(where, communicator);
    const auto model = [&] {
      const ConstructionScope scope(placement_for(config, communicator, runtime->device()));
      return make();
    }();
    Engine engine(model, communicator, config, {.runtime = runtime.get()});
    for (int i = 0; i < 3; ++i) {
      const StepStats stats = engine.train_batch([&](const MicroBatch& batch) {
        const auto first = static_cast<std::int64_t>(batch.first_sample);
        const at::Tensor tokens = at::arange(first, first + 2 * 17).reshape({2, 17}).remainder(60);
        return model->loss(tokens.to(runtime->device()));
      });
      numbers.insert(numbers.end(), {stats.loss, stats.gradient_norm});
    }
  });
  EXPECT_THAT(guarded::take_violations(), IsEmpty());
  return numbers;
}

TEST(GuardedDevice, LanguageModelsTrainWithTheHostsBits) {
  const GptConfig gpt{
      .vocabulary = 64, .context = 16, .layers = 2, .width = 16, .heads = 2, .dropout = 0.1};
  LlamaConfig llama{.family = LlamaFamily::Qwen3,
                    .vocabulary = 64,
                    .positions = 16,
                    .layers = 2,
                    .width = 16,
                    .inner = 24,
                    .heads = 2,
                    .kv_heads = 1};
  llama.qk_norm = true;
  llama.window = 5;
  llama.sliding = {false, true};
  const std::map<std::string, MakeModel> models = {
      {"GPT", [&] { return make_language_model(gpt); }},
      {"Llama", [&] { return make_language_model(llama); }},
      {"adapters", [] { return AdaptedModel().ptr(); }}};
  for (const auto& [name, make] : models) {
    for (const DType compute : {DType::Float32, DType::BFloat16}) {
      SCOPED_TRACE(fmt::format("{}, {}", name, name_of(compute)));
      EXPECT_EQ(train_language_model(Where::Device, make, compute),
                train_language_model(Where::Host, make, compute));
    }
  }
}

TEST(GuardedDevice, ATraceHasTheWorkOfBothStreamsInOrder) {
  guarded::install();
  Trace trace;
  run_threads(1, [&](Communicator& communicator) {
    const Config config = small_config(3);
    const auto make = [&] { return make_guarded_runtime({.trace = &trace}); };
    if (TORCH_VERSION_MAJOR < 2) {
      EXPECT_THROW(make(), Error);
      return;
    }
    const auto runtime = make();
    SmallModel model = build(placement_for(config, communicator, runtime->device()));
    Engine engine(model.ptr(), communicator, config, {.runtime = runtime.get()});
    step(engine, model);
    runtime->complete_trace();
    std::set<std::string> streams;
    double end = 0;
    for (const Trace::Span& span : trace.spans()) {
      streams.insert(span.stream);
      EXPECT_LE(span.begin, span.end) << span.name;
      end = std::max(end, span.end);
    }
    EXPECT_THAT(streams, testing::UnorderedElementsAre("compute", "communication"));
    EXPECT_GT(end, 0);
  });
}

/// Returns the message of what ends the step after an asynchronous save, none of whose threads has
/// waited for the device before that.
std::string error_of_step_after_save(const Config& config, std::optional<Stream> mute) {
  const TempDir folder;
  std::string message;
  run_threads(1, [&](Communicator& communicator) {
    std::promise<void> trained;
    EngineOptions options;
    options.on_save_step = [&](CommitStep reached) {
      if (reached == CommitStep::WriteShard) trained.get_future().wait();
    };
    const auto runtime = make_guarded_runtime({.mute = mute});
    options.runtime = runtime.get();
    SmallModel model = build(placement_for(config, communicator, runtime->device()));
    Engine engine(model.ptr(), communicator, config, options);
    step(engine, model);
    engine.save_checkpoint({.folder = folder.path(), .asynchronous = true});
    try {
      step(engine, model);
    } catch (const std::exception& error) {
      message = error.what();
    }
    trained.set_value();
  });
  if (mute) guarded::take_violations();  // what is left of the step is freed too early
  return message;
}

TEST(GuardedDevice, AnUpdateWaitsForTheCopiesOfASave) {
  for (const DType compute : {DType::Float32, DType::BFloat16}) {
    for (const std::uint32_t stage : {0u, 1u, 2u, 3u})
      EXPECT_EQ(error_of_step_after_save(small_config(stage, compute), std::nullopt), "");
  }
  EXPECT_THAT(guarded::take_violations(), IsEmpty());
}

/// The message of what ends a step of two ranks when a stream does not wait.
std::string error_without_waits(Stream deaf, std::uint32_t stage) {
  std::string message;
  try {
    run_threads(2, [&](Communicator& communicator) {
      const Config config = small_config(stage);
      const auto runtime =
          make_guarded_runtime({.device = static_cast<int>(communicator.rank()), .deaf = deaf});
      SmallModel model = build(placement_for(config, communicator, runtime->device()));
      Engine engine(model.ptr(), communicator, config, {.runtime = runtime.get()});
      step(engine, model);
      step(engine, model);
    });
  } catch (const std::exception& error) {
    message = error.what();
  }
  guarded::take_violations();  // what is left of the step is freed too early
  return message;
}

TEST(GuardedDevice, AWaitThatIsMissingIsFoundAtOnce) {
  for (const std::uint32_t stage : {1u, 2u, 3u}) {
    for (const Stream deaf : {Stream::Compute, Stream::Communication}) {
      EXPECT_THAT(error_without_waits(deaf, stage),
                  AllOf(HasSubstr("guarded: RACE"), HasSubstr("no event orders them")))
          << "stage " << stage << ", stream " << static_cast<int>(deaf);
    }
  }
}

TEST(GuardedDevice, AnUpdateThatDoesNotWaitForTheCopiesIsFoundAtOnce) {
  for (const DType compute : {DType::Float32, DType::BFloat16}) {
    for (const std::uint32_t stage : {0u, 1u, 2u, 3u})
      EXPECT_THAT(error_of_step_after_save(small_config(stage, compute), Stream::Copy),
                  AllOf(HasSubstr("guarded: RACE"), HasSubstr("no event orders them")));
  }
}

TEST(GuardedDevice, AccessOfTheHostIsFound) {
  run_threads(1, [&](Communicator& communicator) {
    const Config config = small_config(0);
    const auto runtime = make_guarded_runtime();
    SmallModel model = build(placement_for(config, communicator, runtime->device()));
    const Engine engine(model.ptr(), communicator, config, {.runtime = runtime.get()});
    const auto* const values = static_cast<const volatile float*>(model->in->weight.data_ptr());
    EXPECT_THAT(guarded::host_access([&] { static_cast<void>(*values); }),
                HasSubstr("the host accesses device memory"));
    EXPECT_EQ(guarded::host_access([] {}), "");
  });
}

TEST(GuardedDevice, OperationsOnMemoryThatWasReleasedAndOnTwoDevicesAreErrors) {
  guarded::install();
  const at::Tensor a = at::ones({3}).to(guarded::device(0));
  EXPECT_THROW(a + at::ones({3}).to(guarded::device(1)), std::exception);
  EXPECT_THROW(a + at::ones({3}), std::exception);
  const at::Tensor view = a.view({3, 1});
  a.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, a.device()));
  EXPECT_THROW(view.cpu(), std::exception);
}

TEST(GuardedDevice, InputsOfMicroBatchesComeThroughPinnedMemory) {
  const auto runtime = make_guarded_runtime();
  const guarded::CopiedBytes before = guarded::copied_bytes();
  BatchCopies copies(runtime->device());
  at::Tensor host = at::empty({5}, at::kLong);
  std::vector<at::Tensor> sums;
  for (std::int64_t i = 0; i < 6; ++i) {
    host = host.resize_({5 + 3 * i}).fill_(i);
    sums.push_back(copies.send(host).sum());
    host.fill_(-1);  // the host makes the next one
  }
  const guarded::CopiedBytes after = guarded::copied_bytes();
  EXPECT_EQ(after.to_device, before.to_device);
  EXPECT_GT(after.to_device_behind, before.to_device_behind);
  for (std::int64_t i = 0; i < 6; ++i)
    EXPECT_EQ(sums[static_cast<std::size_t>(i)].cpu().item<std::int64_t>(), i * (5 + 3 * i));
  EXPECT_THAT(guarded::take_violations(), IsEmpty());
  EXPECT_TRUE(BatchCopies(at::kCPU).send(host).is_same(host));
}

/// Returns whether LibTorch fills new tensors with NaN where it is deterministic.
bool fills_new_memory() {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 2)
  return at::globalContext().deterministicFillUninitializedMemory();
#else
  return false;
#endif
}

TEST(GuardedDevice, PassesThatPromiseNothingLeaveTheSwitchesAlone) {
  run_threads(1, [&](Communicator& communicator) {
    Config config = small_config(0);
    config.canonical_order = true;
    config.deterministic = false;
    const auto runtime = make_guarded_runtime();
    SmallModel model = build(placement_for(config, communicator, runtime->device()));
    Engine engine(model.ptr(), communicator, config, {.runtime = runtime.get()});
    engine.train_batch([&](const MicroBatch& batch) {
      EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
      return model->loss(batch);
    });
  });
}

TEST(GuardedDevice, DeterministicPassesLeaveTheSwitchesAsTheUserHadThem) {
  run_threads(1, [&](Communicator& communicator) {
    Config config = small_config(3);
    config.canonical_order = true;
    const auto runtime = make_guarded_runtime();
    SmallModel model = build(placement_for(config, communicator, runtime->device()));
    Engine engine(model.ptr(), communicator, config, {.runtime = runtime.get()});
    at::Context& context = at::globalContext();
    const bool filled = fills_new_memory();
    for (const bool users : {false, true}) {
      context.setDeterministicAlgorithms(users, /*warn_only=*/users);
      const auto expect_users = [&] {
        EXPECT_EQ(context.deterministicAlgorithms(), users);
        EXPECT_EQ(context.deterministicAlgorithmsWarnOnly(), users);
        EXPECT_EQ(fills_new_memory(), filled);
      };
      const auto loss = [&](const MicroBatch& batch) {
        EXPECT_TRUE(context.deterministicAlgorithms());
        EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
        EXPECT_FALSE(fills_new_memory());
        return model->loss(batch);
      };
      engine.train_batch(loss);
      expect_users();
      EXPECT_THROW(engine.train_batch([](const MicroBatch&) -> at::Tensor {
        throw std::runtime_error("the data are gone");
      }),
                   std::runtime_error);
      expect_users();
      const Error error = error_of([&] {
        engine.train_batch([&](const MicroBatch& batch) {
          at::globalContext().alertNotDeterministic("crooked_sum");
          return model->loss(batch);
        });
      });
      EXPECT_THAT(error, Fails(ErrorCode::Unsupported));
      EXPECT_THAT(error.what(), HasSubstr("crooked_sum has no deterministic way"));
      EXPECT_THAT(error.hint(), HasSubstr("\"deterministic\": false"));
      engine.train_batch(loss);
      expect_users();
    }
    context.setDeterministicAlgorithms(false, /*warn_only=*/false);
  });
}

TEST(GuardedDevice, MemoryThatIsFreedWhileAnotherStreamUsesItIsFound) {
  const auto runtime = make_guarded_runtime();
  guarded::take_violations();  // LibTorch frees the graph of a step that failed some time later
  at::Tensor a = at::ones({3}).to(runtime->device());
  runtime->run(Stream::Communication, "read", [&] { a.clone(); });
  a.reset();
  EXPECT_THAT(guarded::take_violations(), testing::ElementsAre(HasSubstr("may still use it")));
}

}  // namespace
}  // namespace unishard::test
