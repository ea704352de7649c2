// Saving and loading through the engine: what is in a checkpoint, what does not fit, and what
// happens when one rank fails.
#include "unishard/converters/save_folder.hpp"
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/output_lock.hpp"

#include "checkpoint/compare.hpp"
#include "checkpoint/in_parallel.hpp"
#include "checkpoint/local_state.hpp"
#include "engine/prepare_state.hpp"
#include "expect.hpp"
#include "small_model.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <filesystem>
#include <optional>

namespace unishard::test {
namespace {

using namespace trainer;
using testing::HasSubstr;

void save_two_steps(const Path& folder, std::uint32_t world, const Config& config) {
  with_engine(world, config, {.shuffle_seed = 99, .samples_per_epoch = 10},
              [&](Engine& engine, SmallModel& model, auto&) {
                step(engine, model);
                step(engine, model);
                const SaveHandle handle = engine.save_checkpoint(
                    {.folder = folder, .tag = "t", .client_state = {{"a", 1}}});
                EXPECT_TRUE(handle.captured() && handle.durable());
              });
}

TEST(CheckpointBridge, HoldsAllStateUnderItsNames) {
  const TempDir folder;
  save_two_steps(folder.path(), 3, small_config(2, DType::BFloat16));
  const CheckpointReader reader(posix_storage(),
                                resolve_checkpoint(posix_storage(), folder.path(), "t"));
  const Catalog& catalog = reader.catalog();
  EXPECT_EQ(catalog.step, 2);
  EXPECT_EQ(catalog.world_size, 3u);
  EXPECT_EQ(catalog.stage, 2u);
  ASSERT_EQ(catalog.aliases.size(), 1u);
  EXPECT_EQ(catalog.aliases[0], (Alias{"out.weight", "in.weight"}));
  const auto tensor = [&](const char* fqn, const char* state) {
    return catalog.tensors.at(catalog.find(fqn, state).value());
  };
  EXPECT_TRUE(tensor("block0.up.weight", "weights").derived);
  EXPECT_EQ(tensor("block0.up.weight", "weights").dtype, DType::BFloat16);
  EXPECT_EQ(tensor("block0.up.weight", "exp_avg").group, 0);
  EXPECT_EQ(tensor("block0.up.bias", "exp_avg_sq").group, 1);
  EXPECT_TRUE(tensor("block1.frozen", "weights").frozen);
  EXPECT_EQ(tensor("counter", "buffer").dtype, DType::Int64);
  EXPECT_FALSE(catalog.find("block1.frozen", "fp32"));
  std::vector<std::string> units;
  for (const UnitLayout& unit : catalog.units) units.push_back(unit.name);
  EXPECT_EQ(units,
            (std::vector<std::string>{"", "block0", "block0.inner", "block1", "block1.inner"}));
  EXPECT_EQ(catalog.data_position["global_sample_index"], 24);
  EXPECT_EQ(catalog.data_position["epoch"], 2);
  EXPECT_EQ(catalog.data_position["shuffle_seed"], 99);
  EXPECT_EQ(catalog.rng["scheme"], "counter");
  EXPECT_EQ(catalog.scheduler["last_batch_iteration"], 1);
  EXPECT_EQ(catalog.groups[1]["weight_decay"], 0);
  EXPECT_EQ(catalog.client_state["a"], 1);
  EXPECT_TRUE(catalog.producer.contains("torch"));
}

/// Gives the buffers other values on each rank; rank 0's are 3 and 7.
void change_buffers(SmallModel& model, std::uint32_t rank) {
  for (auto& block : model->blocks) block->scale.fill_(3.0 + rank);
  model->named_buffers()["counter"].fill_(7 + static_cast<std::int64_t>(rank));
}

TEST(CheckpointBridge, HoldsTheBuffersOfRank0AndNamesThoseThatDiffer) {
  for (const bool asynchronous : {false, true}) {
    const TempDir folder;
    with_engine(3, small_config(2), {},
                [&](Engine& engine, SmallModel& model, Communicator& communicator) {
                  change_buffers(model, communicator.rank());
                  const SaveHandle handle = engine.save_checkpoint(
                      {.folder = folder.path(), .tag = "t", .asynchronous = asynchronous});
                  EXPECT_EQ(model->blocks[0]->scale[0].item<float>(),
                            3.0f + static_cast<float>(communicator.rank()))
                      << "a save changes no rank's own values";
                  const SaveReport& report = handle.wait();
                  if (communicator.rank() != 0) return;
                  ASSERT_EQ(report.warnings.size(), 1u);
                  EXPECT_THAT(report.warnings[0], HasSubstr("counter, block0.scale, block1.scale"));
                });
    with_engine(2, small_config(2), {}, [&](Engine& engine, SmallModel& model, Communicator&) {
      engine.load_checkpoint(folder.path());
      for (auto& block : model->blocks) EXPECT_TRUE(block->scale.eq(3.0).all().item<bool>());
      EXPECT_EQ(model->named_buffers()["counter"].item<std::int64_t>(), 7);
    });
  }
}

TEST(LocalState, GivesThreadsTheWeightsOfDifferentUnitsAtTheSameTime) {
  const auto single = make_single_communicator();
  const Config config = small_config(3, DType::BFloat16);
  SmallModel model = build(placement_for(config, *single));
  const auto state = trainer::detail::prepare_state(model.ptr(), *single, config, {}, at::kCPU);
  const trainer::detail::LocalState local(state);
  std::vector<std::size_t> weights;
  for (std::size_t t = 0; t < local.tensors().size(); ++t) {
    if (local.master_of(t)) weights.push_back(t);
  }
  const auto bytes_at = [&](std::size_t index) {
    const auto tensor = local.local(weights[index % weights.size()]).on_host();
    return std::vector<std::byte>(tensor.bytes.begin(), tensor.bytes.end());
  };
  std::vector<std::vector<std::byte>> expected;
  for (std::size_t i = 0; i < weights.size(); ++i) expected.push_back(bytes_at(i));
  std::atomic<int> wrong = 0;
  trainer::detail::in_parallel(20'000, [&](std::size_t i) {
    if (bytes_at(i) != expected[i % weights.size()]) ++wrong;
  });
  EXPECT_EQ(wrong, 0);
}

/// `changes` are a JSON merge patch: null removes a key.
Config config_of(const Json& changes = Json::object()) {
  Json json = {{"train_micro_batch_size_per_gpu", 2},
               {"gradient_accumulation_steps", 2},
               {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-2}}}}},
               {"bf16", {{"enabled", true}}},
               {"scheduler", {{"type", "WarmupLR"}, {"params", {{"warmup_num_steps", 3}}}}}};
  json.merge_patch(changes);
  return parse_config(json);
}

std::vector<std::string> notes_of_resume(const Path& folder, std::uint32_t world,
                                         const Config& config) {
  std::vector<std::string> notes;
  with_engine(world, config, {.shuffle_seed = 99, .samples_per_epoch = 10},
              [&](Engine& engine, SmallModel&, Communicator& communicator) {
                const LoadReport report = engine.load_checkpoint(folder);
                if (communicator.rank() == 0) notes = report.notes;
              });
  return notes;
}

TEST(CheckpointBridge, ResumingWithOtherSettingsIsNoted) {
  const TempDir folder;
  save_two_steps(folder.path(), 2, config_of());
  EXPECT_EQ(notes_of_resume(folder.path(), 2, config_of()), std::vector<std::string>{});
  EXPECT_EQ(notes_of_resume(folder.path(), 3, config_of()),
            std::vector<std::string>{"train_batch_size was 8, the configuration's 12 is used"});
  const Config other = config_of({{"train_micro_batch_size_per_gpu", 4},
                                  {"bf16", {{"enabled", false}}},
                                  {"gradient_clipping", 0.5},
                                  {"scheduler", nullptr}});
  EXPECT_EQ(notes_of_resume(folder.path(), 1, other),
            (std::vector<std::string>{
                "precision was bfloat16, the configuration's float32 is used",
                R"(scheduler was {"type":"WarmupLR","params":{"warmup_num_steps":3}}, )"
                "the configuration's constant rate is used",
                "gradient_clipping was 1, the configuration's 0.5 is used",
                "train_micro_batch_size_per_gpu was 2, the configuration's 4 is used"}));
  const Config uncorrected = config_of(
      {{"non_finite", "skip"}, {"optimizer", {{"params", {{"bias_correction", false}}}}}});
  EXPECT_EQ(notes_of_resume(folder.path(), 2, uncorrected),
            (std::vector<std::string>{
                "non_finite was error, the configuration's skip is used",
                "optimizer.params.bias_correction was true, the configuration's false is used"}));
}

TEST(CheckpointBridge, GroupsHaveTheNumbersOfTheirOptimizer) {
  const auto sgd = [](bool nesterov) {
    return config_of({{"optimizer",
                       {{"type", "SGD"},
                        {"params", {{"lr", 0.1}, {"momentum", 0.9}, {"nesterov", nesterov}}}}}});
  };
  const TempDir folder;
  save_two_steps(folder.path(), 2, sgd(true));
  EXPECT_THAT(notes_of_resume(folder.path(), 2, sgd(false)),
              testing::Contains(testing::HasSubstr("nesterov was true")));
  EXPECT_EQ(notes_of_resume(folder.path(), 2, sgd(true)), std::vector<std::string>{});
}

TEST(CheckpointBridge, LoadRestoresEverythingOnAnotherWorldSizeAndStage) {
  const TempDir folder;
  save_two_steps(folder.path(), 3, small_config(2));
  for (std::uint32_t stage = 0; stage <= 3; ++stage) {
    Config config = small_config(stage);
    config.seed = 5;  // other initial values, so that what is equal was loaded
    with_engine(2, config, {}, [&](Engine& engine, SmallModel& model, Communicator& communicator) {
      {
        GatheredScope scope(engine, {"block1.frozen"});
        model->blocks[1]->frozen.zero_();
        scope.write_back(0);
      }
      model->blocks[1]->scale.zero_();
      const LoadReport report = engine.load_checkpoint(folder.path());
      EXPECT_EQ(report.tag, "t");
      EXPECT_EQ(report.client_state["a"], 1);
      EXPECT_EQ(report.notes.size(), 2u);  // both seeds are the checkpoint's
      EXPECT_EQ(engine.global_steps(), 2);
      EXPECT_EQ(engine.samples_seen(), 24u);
      EXPECT_EQ(engine.shuffle_seed(), 99u);
      {
        const GatheredScope scope(engine);
        EXPECT_EQ(model->blocks[1]->frozen.sum().item<double>(), 0.5 * kWidth);
      }
      EXPECT_EQ(model->blocks[1]->scale.sum().item<double>(), 2.0 * kWidth);
      const Path target = folder.path() / ("again" + std::to_string(stage));
      const SaveReport again = engine.save_checkpoint({.folder = target, .tag = "t"}).wait();
      if (communicator.rank() != 0) return;
      const CheckpointReader first(posix_storage(), folder.path() / "t");
      EXPECT_EQ(again.identity, identity(first.catalog()));
    });
  }
}

TEST(CheckpointBridge, AFolderOfAnotherRunIsRefusedOnEveryRank) {
  const TempDir folder;
  const Path taken = folder.path() / "taken", free = folder.path() / "free";
  std::filesystem::create_directory(taken);
  std::optional<OutputLock> other(std::in_place, posix_storage(),
                                  taken / converters::kTrainingLockFile, taken);
  for (const bool asynchronous : {false, true}) {
    with_engine(
        2, small_config(2), {}, [&](Engine& engine, SmallModel& model, Communicator& group) {
          step(engine, model);
          EXPECT_THAT(error_of([&] {
                        engine.save_checkpoint({.folder = taken, .asynchronous = asynchronous});
                      }),
                      Fails(group.rank() == 0 ? ErrorCode::Busy : ErrorCode::PeerFailed,
                            "is being written by process "));
          engine.claim_save_folder(free);
          engine.claim_save_folder(free);
          engine.save_checkpoint({.folder = free, .asynchronous = asynchronous}).wait();
        });
  }
  EXPECT_TRUE(list_tags(posix_storage(), taken).empty());
  other.reset();
  save_two_steps(taken, 2, small_config(2));
  EXPECT_EQ(list_tags(posix_storage(), taken).size(), 1u);
}

TEST(CheckpointBridge, AnotherProgramsFolderIsNotSavedTo) {
  const TempDir folder;
  write_file(folder.path() / "global_step4" / "mp_rank_00_model_states.pt", "theirs");
  write_file(folder.path() / "latest", "global_step4");
  with_engine(2, small_config(2), {}, [&](Engine& engine, SmallModel& model, Communicator& group) {
    step(engine, model);
    EXPECT_THAT(error_of([&] { engine.claim_save_folder(folder.path()); }),
                Fails(group.rank() == 0 ? ErrorCode::AlreadyExists : ErrorCode::PeerFailed));
  });
  EXPECT_EQ(posix_storage().list(folder.path()).size(), 2u);
}

TEST(CheckpointBridge, AnIncrementalSaveWritesWhatChangedAndNeedsNoOther) {
  const TempDir folder;
  for (const bool asynchronous : {false, true}) {
    const Path target = folder.path() / (asynchronous ? "async" : "sync");
    with_engine(2, small_config(2), {},
                [&](Engine& engine, SmallModel& model, Communicator& group) {
                  const auto save = [&](const char* tag, bool incremental) {
                    return engine
                        .save_checkpoint({.folder = target,
                                          .tag = tag,
                                          .asynchronous = asynchronous,
                                          .incremental = incremental})
                        .wait();
                  };
                  step(engine, model);
                  const SaveReport first = save("first", true);  // there is nothing to share with
                  const SaveReport same = save("same", true);
                  EXPECT_EQ(same.identity, first.identity);
                  EXPECT_LT(same.written_bytes, first.written_bytes);
                  step(engine, model);
                  const SaveReport next = save("next", true);
                  const SaveReport whole = save("whole", false);
                  EXPECT_EQ(next.identity, whole.identity);
                  if (group.rank() == 0) {
                    EXPECT_NE(next.identity, first.identity);
                  }
                });
    const CheckpointReader same(posix_storage(), target / "same");
    for (const auto& shard : same.shards())
      EXPECT_EQ(shard->shared_payload_bytes(), shard->stored_payload_bytes());
    std::filesystem::remove_all(target / "first");
    with_engine(3, small_config(3), {}, [&](Engine& engine, SmallModel&, auto&) {
      EXPECT_EQ(engine.load_checkpoint(target, "same").step, 1);
      EXPECT_EQ(engine.load_checkpoint(target, "next").step, 2);
      // Of another world size, `latest` is nothing to share with.
      const SaveReport other =
          engine.save_checkpoint({.folder = target, .tag = "other", .incremental = true}).wait();
      EXPECT_GE(other.written_bytes, other.bytes);
      // Nor for chunks of another size, as compressed ones have.
      const SaveReport compressed =
          engine
              .save_checkpoint({.folder = target,
                                .tag = "compressed",
                                .compression = {Compression::Mode::Zstd, 0},
                                .incremental = true})
              .wait();
      EXPECT_EQ(compressed.identity, other.identity);
    });
    const CheckpointReader compressed(posix_storage(), target / "compressed");
    for (const auto& shard : compressed.shards()) EXPECT_EQ(shard->shared_payload_bytes(), 0u);
  }
}

// What is wrong with the checkpoint before must not keep a run from saving.
TEST(CheckpointBridge, AnIncrementalSaveOverADamagedOneIsWhole) {
  const TempDir folder;
  with_engine(2, small_config(1), {}, [&](Engine& engine, SmallModel& model, Communicator& group) {
    step(engine, model);
    const auto save = [&](const char* tag) {
      return engine.save_checkpoint({.folder = folder.path(), .tag = tag, .incremental = true})
          .wait();
    };
    const SaveReport first = save("first");
    if (group.rank() == 0) std::filesystem::resize_file(folder.path() / "first/manifest.json", 9);
    const SaveReport second = save("second");
    EXPECT_GE(second.written_bytes, first.written_bytes);
    EXPECT_EQ(second.identity, first.identity);
    if (group.rank() == 0) write_file(folder.path() / "latest", "a/b");
    EXPECT_EQ(save("third").identity, first.identity);
  });
}

TEST(CheckpointBridge, ABf16CheckpointLoadsIntoFp32AndBack) {
  const TempDir folder;
  save_two_steps(folder.path(), 2, small_config(3, DType::BFloat16));
  with_engine(2, small_config(1), {}, [&](Engine& engine, SmallModel&, auto&) {
    EXPECT_NO_THROW(engine.load_checkpoint(folder.path()));
  });
}

TEST(CheckpointBridge, AnotherOptimizerIsAMismatchThatNamesBoth) {
  const TempDir folder;
  save_two_steps(folder.path(), 1, small_config(1));
  Config config = small_config(1);
  config.optimizer = "Lion";
  with_engine(1, config, {}, [&](Engine& engine, SmallModel&, auto&) {
    EXPECT_THAT(error_of([&] { engine.load_checkpoint(folder.path()); }),
                Fails(ErrorCode::Mismatch, {"saved with optimizer AdamW, here it is Lion",
                                            "unexpected: block0.down.bias [exp_avg_sq]"}));
  });
}

TEST(CheckpointBridge, IntegersAreNoWeights) {
  Catalog saved, wanted;
  TensorInfo tensor;
  tensor.fqn = "a";
  tensor.state = state::kWeights;
  tensor.shape = {2};
  tensor.dtype = DType::Int32;
  saved.tensors = {tensor};
  tensor.dtype = DType::Float32;
  wanted.tensors = {tensor};
  EXPECT_THAT(error_of([&] { trainer::detail::require_match(saved, wanted, "x"); }),
              Fails(ErrorCode::Mismatch, "is int32 in the checkpoint, float32 here"));
  saved.tensors[0].dtype = DType::BFloat16;
  EXPECT_NO_THROW(trainer::detail::require_match(saved, wanted, "x"));
}

TEST(CheckpointBridge, OneRanksFailureIsEveryRanksAndLeavesNothing) {
  const TempDir folder;
  const Config config = small_config(2);
  run_threads(3, [&](Communicator& communicator) {
    SmallModel model = build(placement_for(config, communicator));
    EngineOptions options;
    options.on_save_step = [&](CommitStep reached) {
      if (communicator.rank() == 1 && reached == CommitStep::SyncShard)
        raise(ErrorCode::NoSpace, "disk is full");
    };
    Engine engine(model.ptr(), communicator, config, options);
    step(engine, model);
    EXPECT_THAT(error_of([&] { engine.save_checkpoint({.folder = folder.path(), .tag = "t"}); }),
                Fails(communicator.rank() == 1 ? ErrorCode::NoSpace : ErrorCode::PeerFailed,
                      "disk is full"));
    step(engine, model);  // training goes on
  });
  EXPECT_TRUE(posix_storage().list(folder.path()).empty());
}

TEST(CheckpointBridge, ABadTagIsRefusedOnAllRanks) {
  const TempDir folder;
  with_engine(2, small_config(0), {}, [&](Engine& engine, SmallModel&, auto&) {
    EXPECT_THROW(engine.save_checkpoint({.folder = folder.path(), .tag = "../x"}), Error);
  });
}

}  // namespace
}  // namespace unishard::test
