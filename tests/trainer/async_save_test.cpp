// Saves that training does not wait for: what they save, what they leave when they fail, and who
// is told.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"

#include "device/device_copies.hpp"
#include "device/pinned_memory.hpp"
#include "device/tensor_bytes.hpp"
#include "expect.hpp"
#include "fault_storage.hpp"
#include "make_checkpoint.hpp"
#include "small_model.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

namespace unishard::test {
namespace {

using testing::Optional;

using namespace trainer;

/// Holds a rank's background saves back until training has got somewhere.
class Gate {
 public:
  void open(int count) {
    const std::lock_guard lock(mutex_);
    opened_ = count;
    changed_.notify_all();
  }
  void pass(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return opened_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int opened_ = 0;
};

struct Run {
  std::uint32_t world;
  std::uint32_t stage;
  DType compute;
};

class WhileTrainingGoesOn : public testing::TestWithParam<Run> {
 protected:
  static constexpr int kSteps = 5;

  /// Saves steps 2 and 4. The n-th asynchronous save of a rank writes nothing before step 2 n + 1
  /// is done there. Returns rank 0's losses.
  std::vector<double> train(const Path& folder, bool asynchronous) const {
    std::vector<double> losses;
    const auto [world, stage, compute] = GetParam();
    const Config config = small_config(stage, compute);
    run_threads(world, [&](Communicator& communicator) {
      Gate gate;
      int writes = 0;
      EngineOptions options;
      options.on_save_step = [&](CommitStep reached) {
        if (asynchronous && reached == CommitStep::WriteShard) gate.pass(2 * ++writes + 1);
      };
      SmallModel model = build(placement_for(config, communicator));
      Engine engine(model.ptr(), communicator, config, options);
      std::vector<SaveHandle> saves;
      for (int done = 1; done <= kSteps; ++done) {
        const double loss = step(engine, model).loss;
        if (communicator.rank() == 0) losses.push_back(loss);
        gate.open(done);
        if (done % 2 == 0)
          saves.push_back(engine.save_checkpoint({.folder = folder, .asynchronous = asynchronous}));
        if (done == 2) {
          EXPECT_NE(saves[0].durable(), asynchronous);
        }
      }
      for (const SaveHandle& save : saves) {
        const SaveReport& report = save.wait();
        EXPECT_EQ(report.identity.empty(), communicator.rank() != 0);
        EXPECT_LE(report.stall_seconds, report.seconds);
        EXPECT_TRUE(save.captured() && save.durable() && save.finished());
      }
    });
    return losses;
  }
};

TEST_P(WhileTrainingGoesOn, TheSameStateIsSavedAndTheSameStepsAreTrained) {
  const TempDir folder;
  const auto expected = train(folder.path() / "sync", false);
  const auto actual = train(folder.path() / "async", true);
  EXPECT_EQ(actual, expected);
  for (const char* tag : {"global_step2", "global_step4"})
    EXPECT_EQ(identity_of(folder.path() / "async" / tag),
              identity_of(folder.path() / "sync" / tag));
  EXPECT_NE(identity_of(folder.path() / "async/global_step2"),
            identity_of(folder.path() / "async/global_step4"));
}

/// The first save is done 0.2 s after the call of the second one at the earliest.
TEST(AsyncSave, TheWaitForTheSaveBeforeIsToldApart) {
  const TempDir folder;
  const Config config = small_config(0, DType::Float32);
  run_threads(1, [&](Communicator& communicator) {
    std::promise<void> may_write;
    int writes = 0;
    EngineOptions options;
    options.on_save_step = [&](CommitStep reached) {
      if (reached == CommitStep::WriteShard && ++writes == 1) may_write.get_future().wait();
    };
    SmallModel model = build(placement_for(config, communicator));
    Engine engine(model.ptr(), communicator, config, options);
    step(engine, model);
    const SaveHandle first =
        engine.save_checkpoint({.folder = folder.path(), .asynchronous = true});
    step(engine, model);
    std::jthread late([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      may_write.set_value();
    });
    const SaveReport second =
        engine.save_checkpoint({.folder = folder.path(), .asynchronous = true}).wait();
    EXPECT_LT(first.wait().wait_seconds, second.wait_seconds);
    EXPECT_GE(second.wait_seconds, 0.15);
    EXPECT_LE(second.wait_seconds, second.stall_seconds);
  });
}

std::vector<Run> runs() {
  std::vector<Run> all;
  for (const DType compute : {DType::Float32, DType::BFloat16}) {
    for (std::uint32_t stage = 0; stage <= 3; ++stage) {
      for (const std::uint32_t world : {1u, 2u, 3u}) all.push_back({world, stage, compute});
    }
  }
  return all;
}

/// Saves step 1 as "sync" and then as "async", whose copy begins when the gate opens. Calls
/// body(engine, model, gate) while that save is under way.
template <class Body>
void save_with_a_late_copy(const Run& run, const Path& folder, const Body& body) {
  const Config config = small_config(run.stage, run.compute);
  run_threads(run.world, [&](Communicator& communicator) {
    Gate gate;
    const auto runtime = make_host_runtime({.before_work = [&](std::string_view name) {
      if (name == "copy for a save") gate.pass(1);
    }});
    SmallModel model = build(placement_for(config, communicator));
    Engine engine(model.ptr(), communicator, config, {.runtime = runtime.get()});
    step(engine, model);
    engine.save_checkpoint({.folder = folder, .tag = "sync"});
    const SaveHandle save =
        engine.save_checkpoint({.folder = folder, .tag = "async", .asynchronous = true});
    body(engine, model, gate);
    save.wait();
  });
}

/// The copy begins when the next step is computed. The update waits for it.
TEST_P(WhileTrainingGoesOn, TheStateIsCopiedWhileTheNextStepIsComputed) {
  const TempDir folder;
  save_with_a_late_copy(GetParam(), folder.path(),
                        [](Engine& engine, SmallModel& model, Gate& gate) {
                          engine.train_batch([&](const MicroBatch& batch) {
                            gate.open(1);
                            return model->loss(batch);
                          });
                        });
  EXPECT_EQ(identity_of(folder.path() / "async"), identity_of(folder.path() / "sync"));
}

/// Weights that the program changes meanwhile, and what follows from them in the training state,
/// are saved as they were when the save began.
TEST_P(WhileTrainingGoesOn, WhatTheProgramChangesMeanwhileIsSavedAsItWas) {
  const TempDir folder;
  save_with_a_late_copy(GetParam(), folder.path(),
                        [&](Engine& engine, SmallModel& model, Gate& gate) {
                          const torch::NoGradGuard no_grad;
                          if (GetParam().stage < 3) model->blocks[1]->up->weight.add_(1);
                          const std::jthread late([&] {
                            std::this_thread::sleep_for(std::chrono::milliseconds(20));
                            gate.open(1);
                          });
                          {
                            GatheredScope gathered(engine);
                            model->blocks[0]->up->weight.mul_(2);
                            gathered.write_back(0);
                          }
                          engine.save_checkpoint({.folder = folder.path(), .tag = "changed"});
                        });
  const std::string expected = identity_of(folder.path() / "sync");
  EXPECT_EQ(identity_of(folder.path() / "async"), expected);
  EXPECT_NE(identity_of(folder.path() / "changed"), expected);
}

INSTANTIATE_TEST_SUITE_P(AsyncSave, WhileTrainingGoesOn, testing::ValuesIn(runs()),
                         [](const auto& row) {
                           return fmt::format("W{}Stage{}{}", row.param.world, row.param.stage,
                                              name_of(row.param.compute));
                         });

TEST(AsyncSave, WeightsThatAreNotTheRoundedMasterAreSavedAsTheyAre) {
  const TempDir folder;
  for (const std::uint32_t stage : {0u, 1u}) {
    const auto target = [&](const char* name) {
      return folder.path() / name / std::to_string(stage);
    };
    with_engine(
        2, small_config(stage, DType::BFloat16), {}, [&](Engine& engine, SmallModel& model, auto&) {
          step(engine, model);
          {
            const torch::NoGradGuard no_grad;
            model->blocks[1]->up->weight.add_(1);
          }
          engine.save_checkpoint({.folder = target("sync"), .tag = "t"});
          const SaveHandle save =
              engine.save_checkpoint({.folder = target("async"), .tag = "t", .asynchronous = true});
          step(engine, model);
          save.wait();
        });
    EXPECT_EQ(identity_of(target("async") / "t"), identity_of(target("sync") / "t"));
    const CheckpointReader reader(posix_storage(), target("async") / "t");
    const auto derived = [&](const char* name) {
      return reader.catalog().tensors.at(reader.catalog().find(name, "weights").value()).derived;
    };
    EXPECT_FALSE(derived("block1.up.weight"));
    EXPECT_TRUE(derived("block0.up.weight"));
  }
}

TEST(AsyncSave, OneCopyOfWhatIsWrittenIsKeptForTheNextSave) {
  const TempDir folder;
  for (std::uint32_t stage = 0; stage <= 3; ++stage) {
    with_engine(
        1, small_config(stage, DType::BFloat16), {}, [&](Engine& engine, SmallModel& model, auto&) {
          EXPECT_EQ(engine.memory().staging, 0);
          engine.prepare_asynchronous_saves();
          const std::int64_t staging = engine.memory().staging;
          EXPECT_GE(static_cast<std::uint64_t>(staging), engine.bytes_to_stage());
          for (int i = 0; i < 2; ++i) {
            step(engine, model);
            const SaveReport report =
                engine.save_checkpoint({.folder = folder.path(), .asynchronous = true}).wait();
            EXPECT_GE(engine.bytes_to_stage(), report.bytes);
            EXPECT_LT(engine.bytes_to_stage(), report.bytes + report.bytes / 10);
            EXPECT_EQ(engine.memory().staging, staging);
          }
        });
  }
}

TEST(AsyncSave, ASaveALoadAndTheEndWaitForTheSaveBefore) {
  const TempDir folder;
  Gate gate;
  std::optional<SaveHandle> last;
  int begun = 0, written = 0;
  EngineOptions options;
  options.on_save_step = [&](CommitStep reached) {
    if (reached == CommitStep::CreateStaging && ++begun > 1) {
      EXPECT_TRUE(last->durable());
    }
    if (reached == CommitStep::WriteShard) gate.pass(++written);
  };
  with_engine(1, small_config(1), options, [&](Engine& engine, SmallModel& model, auto&) {
    const auto save = [&] {
      step(engine, model);
      last = engine.save_checkpoint({.folder = folder.path(), .asynchronous = true});
      EXPECT_FALSE(last->finished());
      EXPECT_FALSE(last->durable());
    };
    save();
    gate.open(1);
    save();
    gate.open(2);
    EXPECT_EQ(engine.load_checkpoint(folder.path()).step, 2);
    EXPECT_TRUE(last->durable());
    save();
    gate.open(3);
  });
  EXPECT_TRUE(last->durable());
  EXPECT_EQ(last->wait().tag, "global_step3");
}

enum class Told { ByWait, ByTheNextSave };

/// Two ranks; rank `failing` has a storage that fails.
class FailingStorage : public testing::TestWithParam<std::uint32_t> {
 protected:
  using Body = std::function<void(Engine&, SmallModel&,
                                  const std::function<SaveHandle(const char*)>&, bool)>;

  /// body(engine, model, save of a tag, whether the rank is the one that fails)
  void run(Storage& storage, const Path& folder, const Body& body) const {
    const Config config = small_config(2, DType::BFloat16);
    run_threads(2, [&](Communicator& communicator) {
      const bool fails = communicator.rank() == GetParam();
      SmallModel model = build(placement_for(config, communicator));
      Engine engine(model.ptr(), communicator, config,
                    {.storage = fails ? &storage : &posix_storage()});
      body(
          engine, model,
          [&](const char* tag) {
            return engine.save_checkpoint({.folder = folder, .tag = tag, .asynchronous = true});
          },
          fails);
    });
  }

  /// The numbers of the calls that a second save makes.
  std::pair<std::uint64_t, std::uint64_t> calls_of_second_save() const {
    const TempDir folder;
    FaultStorage storage;
    std::pair<std::uint64_t, std::uint64_t> calls;
    run(storage, folder.path(), [&](Engine&, SmallModel&, const auto& save, bool fails) {
      save("first").wait();
      if (fails) calls.first = storage.calls();
      save("second").wait();
      if (fails) calls.second = storage.calls();
    });
    return calls;
  }

  void fail_second_save(std::uint64_t at, Told told) const {
    const TempDir folder;
    FaultStorage storage(Fault::FailOnce, at);
    run(storage, folder.path(),
        [&](Engine& engine, SmallModel& model, const auto& save, bool fails) {
          step(engine, model);
          save("first").wait();
          step(engine, model);
          std::optional<SaveHandle> second;
          std::optional<Error> error = thrown_by([&] { second = save("second"); });
          step(engine, model);  // training goes on
          if (second) {
            error = told == Told::ByWait ? error_of([&] { second->wait(); })
                                         : error_of([&] { save("third"); });
            EXPECT_TRUE(second->finished() && !second->durable());
          }
          EXPECT_THAT(error, Optional(Fails(fails ? ErrorCode::Io : ErrorCode::PeerFailed,
                                            "injected failure")));
          const LoadReport loaded = engine.load_checkpoint(folder.path());
          EXPECT_TRUE(loaded.tag == "first" || loaded.tag == "second") << loaded.tag;
          EXPECT_EQ(loaded.step, loaded.tag == "first" ? 1 : 2);
          EXPECT_EQ(save("fourth").wait().tag, "fourth");  // told once, and the engine still saves
        });
    for (const TagEntry& tag : list_tags(posix_storage(), folder.path()))
      EXPECT_TRUE(tag.problem.empty()) << tag.tag << ": " << tag.problem;
  }
};

TEST_P(FailingStorage, IsToldOnceAndLeavesTheSaveBefore) {
  const auto [begin, end] = calls_of_second_save();
  EXPECT_GT(end, begin + 10);
  for (std::uint64_t at = begin; at < end; ++at) {
    SCOPED_TRACE(at);
    fail_second_save(at, at % 2 == 0 ? Told::ByWait : Told::ByTheNextSave);
  }
}

INSTANTIATE_TEST_SUITE_P(AsyncSave, FailingStorage, testing::Values(0u, 1u),
                         [](const auto& row) { return "OfRank" + std::to_string(row.param); });

TEST(AsyncSave, AnErrorThatARankHasWaitedForIsNotThrownAgain) {
  const TempDir folder;
  const Config config = small_config(2);
  run_threads(2, [&](Communicator& communicator) {
    bool fails = communicator.rank() == 1;
    EngineOptions options;
    options.on_save_step = [&](CommitStep reached) {
      if (reached == CommitStep::SyncShard && std::exchange(fails, false))
        raise(ErrorCode::NoSpace, "injected failure: disk is full");
    };
    SmallModel model = build(placement_for(config, communicator));
    Engine engine(model.ptr(), communicator, config, options);
    const SaveHandle save = engine.save_checkpoint({.folder = folder.path(), .asynchronous = true});
    step(engine, model);
    if (communicator.rank() == 0) {
      const auto told = Fails(ErrorCode::PeerFailed, "injected failure");
      EXPECT_THAT(error_of([&] { save.wait(); }), told);
      EXPECT_THAT(error_of([&] { SaveHandle(save).wait(); }), told);
    }
    EXPECT_EQ(engine.save_checkpoint({.folder = folder.path(), .asynchronous = true}).wait().tag,
              "global_step1");
    EXPECT_TRUE(save.finished() && !save.durable());
  });
  EXPECT_EQ(list_tags(posix_storage(), folder.path()).size(), 1u);
}

TEST(AsyncSave, BuffersOfADeviceAreSavedAndLoaded) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const TempDir folder;
  const Config config = small_config(2, DType::BFloat16);
  for (const bool asynchronous : {false, true}) {
    run_threads(2, [&](Communicator& communicator) {
      SmallModel model = build(placement_for(config, communicator));
      const at::Tensor values = at::arange(3 << 20, at::kFloat).sin();
      const at::Tensor table = model->register_buffer("table", values.to(at::kCUDA));
      Engine engine(model.ptr(), communicator, config, {});
      const SaveHandle save =
          engine.save_checkpoint({.folder = folder.path(), .asynchronous = asynchronous});
      model->named_buffers()["table"].zero_();  // captured before
      save.wait();
      engine.load_checkpoint(folder.path());
      const at::Tensor loaded = model->named_buffers()["table"].cpu();
      EXPECT_TRUE(at::equal(loaded, values.to(loaded.scalar_type())));
    });
  }
}

TEST(AsyncSave, ACopyOfADeviceTakesHostMemoryAsWell) {
  const at::Tensor from = at::arange(1000, at::kLong);
  std::vector<std::byte> to(from.nbytes());
  trainer::detail::DeviceCopies copies;
  copies.start(to, from);
  copies.wait();
  EXPECT_TRUE(std::ranges::equal(to, trainer::detail::bytes_of(from)));
}

TEST(AsyncSave, MemoryThatCannotBePinnedSaysWhy) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "a CUDA device can pin it";
  std::vector<std::byte> memory(4096);
  EXPECT_NE(trainer::detail::PinnedMemory(memory, at::kCPU).problem(), "");
}

TEST(AsyncSave, ABadTagIsRefusedAtOnceOnAllRanks) {
  const TempDir folder;
  with_engine(2, small_config(0), {}, [&](Engine& engine, SmallModel&, auto&) {
    EXPECT_THROW(
        engine.save_checkpoint({.folder = folder.path(), .tag = "../x", .asynchronous = true}),
        Error);
  });
}

}  // namespace
}  // namespace unishard::test
