// Runs in which each node has a folder of checkpoints of its own.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/node_shards.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "small_model.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>

#include <atomic>
#include <filesystem>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using namespace trainer;
using testing::AllOf;
using testing::HasSubstr;

/// Four ranks, two of them on each of two nodes, unless a test says otherwise.
class NodeLocal : public testing::Test {
 protected:
  static constexpr std::uint32_t kWorld = 4;

  static Config config(std::uint32_t stage = 3, DType compute = DType::Float32) {
    Config config = small_config(stage, compute);
    config.batch = {.train = 8, .micro = 1, .accumulation = {}};
    config.node_local_checkpoints = true;
    return config;
  }
  Path folder_of(std::uint32_t node) const { return temp_.path() / fmt::format("node{}", node); }

  using Body = std::function<void(Engine&, SmallModel&, Communicator&, const Path& folder)>;

  /// Runs `body` on ranks of which `per_node` share a node.
  void on_nodes(const Config& config, const Body& body, std::uint32_t world = kWorld,
                std::uint32_t per_node = 2,
                const std::function<void(std::uint32_t rank, CommitStep)>& on_step = {}) const {
    run_threads(world, [&](Communicator& communicator) {
      const std::uint32_t rank = communicator.rank(), node = rank / per_node;
      EngineOptions options;
      options.node = std::to_string(node);
      if (on_step) options.on_save_step = [&, rank](CommitStep step) { on_step(rank, step); };
      SmallModel model = build(placement_for(config, communicator));
      Engine engine(model.ptr(), communicator, config, options);
      body(engine, model, communicator, folder_of(node));
    });
  }
  /// Trains `steps` steps, each with a save.
  void train(const Config& config, int steps, const SaveRequest& request = {}) const {
    on_nodes(config, [&](Engine& engine, SmallModel& model, Communicator&, const Path& folder) {
      SaveRequest mine = request;
      mine.folder = folder;
      for (int i = 0; i < steps; ++i) {
        step(engine, model);
        engine.save_checkpoint(mine).wait();
      }
    });
  }
  /// The steps after a load, of every rank alike.
  std::vector<double> resume(const Config& config, std::int64_t from, std::uint32_t world = kWorld,
                             std::uint32_t per_node = 2) const {
    std::vector<double> losses;
    const auto body = [&](Engine& engine, SmallModel& model, Communicator& communicator,
                          const Path& folder) {
      EXPECT_EQ(engine.load_checkpoint(folder).step, from);
      for (int i = 0; i < 2; ++i) {
        const double loss = step(engine, model).loss;
        if (communicator.rank() == 0) losses.push_back(loss);
      }
    };
    on_nodes(config, body, world, per_node);
    return losses;
  }
  /// The losses of an undisturbed run from step `from` on.
  std::vector<double> expected(Config config, int from) const {
    config.node_local_checkpoints = false;
    std::vector<double> losses;
    with_engine(kWorld, config, {}, [&](Engine& engine, SmallModel& model, Communicator& c) {
      for (int i = 0; i < from + 2; ++i) {
        const double loss = step(engine, model).loss;
        if (c.rank() == 0 && i >= from) losses.push_back(loss);
      }
    });
    return losses;
  }
  static std::vector<std::string> names_in(const Path& folder) {
    std::vector<std::string> names;
    for (const Entry& entry : posix_storage().list(folder)) names.push_back(entry.name);
    return names;
  }

  const TempDir temp_;
};

struct Mode {
  std::uint32_t stage;
  DType compute;
  bool asynchronous;
};
class NodeLocalModes : public NodeLocal, public testing::WithParamInterface<Mode> {};

TEST_P(NodeLocalModes, EachNodeHasItsShardsAndAResumeHasTheSameBits) {
  const auto [stage, compute, asynchronous] = GetParam();
  const Config mine = config(stage, compute);
  train(mine, 2, {.folder = {}, .asynchronous = asynchronous});
  for (const std::uint32_t node : {0u, 1u}) {
    const Path tag = folder_of(node) / "global_step2";
    const Manifest manifest = read_manifest(posix_storage(), tag);
    EXPECT_EQ(read_latest(posix_storage(), folder_of(node)), "global_step2");
    std::vector<bool> here(4, false);
    here[2 * node] = here[2 * node + 1] = true;
    EXPECT_EQ(shards_here(posix_storage(), tag, manifest), here);
  }
  EXPECT_EQ(read_text(posix_storage(), folder_of(0) / "global_step2/manifest.json", 1 << 20),
            read_text(posix_storage(), folder_of(1) / "global_step2/manifest.json", 1 << 20));
  EXPECT_EQ(resume(mine, 2), expected(mine, 2));
}

INSTANTIATE_TEST_SUITE_P(Stages, NodeLocalModes,
                         testing::Values(Mode{0, DType::Float32, false},
                                         Mode{1, DType::BFloat16, true},
                                         Mode{2, DType::Float32, true},
                                         Mode{3, DType::BFloat16, false}));

TEST_F(NodeLocal, HoldsTheStateThatOneFolderWouldHold) {
  train(config(), 1);
  Config shared = config();
  shared.node_local_checkpoints = false;
  with_engine(kWorld, shared, {}, [&](Engine& engine, SmallModel& model, Communicator&) {
    step(engine, model);
    engine.save_checkpoint({.folder = temp_.path() / "shared"});
  });
  const Manifest manifest = read_manifest(posix_storage(), folder_of(1) / "global_step1");
  EXPECT_EQ(identity(manifest.catalog), identity_of(temp_.path() / "shared"));
}

TEST_F(NodeLocal, OtherWorldSizesResumeFromTheSameNodes) {
  train(config(), 2);
  EXPECT_EQ(resume(config(2), 2, 2, 1), expected(config(), 2));
  EXPECT_EQ(resume(config(1), 2, 8, 4).size(), 2u);
}

TEST_F(NodeLocal, ANodeWithoutFilesGetsThemFromTheOthers) {
  train(config(), 1);
  EXPECT_EQ(resume(config(), 1, 8, 2).size(), 2u);
}

TEST_F(NodeLocal, SaysWhichFilesNoNodeHas) {
  train(config(), 2);
  fs::rename(folder_of(1), temp_.path() / "gone");
  const auto load = [&](Engine& engine, SmallModel&, Communicator&, const Path& folder) {
    EXPECT_THAT(error_of([&] { engine.load_checkpoint(folder); }),
                Fails(ErrorCode::NotFound,
                      AllOf(HasSubstr("no node has shard-00002-of-00004.h5, "
                                      "shard-00003-of-00004.h5 (of node 1"),
                            HasSubstr("has 2 of its 4 shards in " + folder_of(0).string()),
                            HasSubstr("has 0 of its 4 shards in " + folder_of(1).string()))));
  };
  on_nodes(config(), load);
}

TEST_F(NodeLocal, AnOlderCheckpointOfANodeIsNotMixedWithANewerOne) {
  train(config(), 2);
  fs::remove_all(folder_of(1) / "global_step2");
  replace_text(posix_storage(), folder_of(1) / "latest", "global_step1\n");
  const auto load = [&](Engine& engine, SmallModel&, Communicator&, const Path& folder) {
    EXPECT_THAT(error_of([&] { engine.load_checkpoint(folder); }),
                Fails(ErrorCode::NotFound, "global_step2: no node has"));
    EXPECT_EQ(engine.load_checkpoint(folder, "global_step1").step, 1);
  };
  on_nodes(config(), load);
}

TEST_F(NodeLocal, KeepLastHoldsOnEveryNode) {
  train(config(), 3, {.folder = {}, .keep_last = 2});
  for (const std::uint32_t node : {0u, 1u})
    EXPECT_THAT(names_in(folder_of(node)),
                testing::ElementsAre("global_step2", "global_step3", "latest"));
}

TEST_F(NodeLocal, IncrementalSavesShareTheChunksOfTheirNode) {
  train(config(), 2, {.folder = {}, .incremental = true});
  EXPECT_EQ(resume(config(), 2), expected(config(), 2));
}

TEST_F(NodeLocal, RefusesOneFolderForTwoNodes) {
  run_threads(2, [&](Communicator& communicator) {
    const Config mine = config();
    EngineOptions options;
    options.node = std::to_string(communicator.rank());
    SmallModel model = build(placement_for(mine, communicator));
    Engine engine(model.ptr(), communicator, mine, options);
    EXPECT_THAT(error_of([&] { engine.claim_save_folder(temp_.path()); }),
                Fails(ErrorCode::InvalidArgument, "node 0 ("));
  });
}

/// A save that fails on a rank before a step.
class NodeLocalFailure : public NodeLocal,
                         public testing::WithParamInterface<std::tuple<std::uint32_t, int>> {
 protected:
  void save_with_failure() const {
    const auto [rank, step_number] = GetParam();
    std::atomic<bool> armed = false;
    const auto fail = [&, at = rank, reached = step_number](std::uint32_t mine, CommitStep now) {
      if (armed && mine == at && static_cast<int>(now) == reached)
        raise(ErrorCode::Io, "this step fails");
    };
    on_nodes(
        config(),
        [&](Engine& engine, SmallModel& model, Communicator& c, const Path& folder) {
          step(engine, model);
          engine.save_checkpoint({.folder = folder});
          step(engine, model);
          armed = true;
          c.barrier();
          EXPECT_TRUE(thrown_by(
              [&] { engine.save_checkpoint({.folder = folder, .tag = "next", .keep_last = 1}); }));
        },
        kWorld, 2, fail);
  }
};

TEST_P(NodeLocalFailure, LeavesTheOldOrTheNewCheckpointOnAllNodes) {
  save_with_failure();
  const bool is_published = fs::exists(folder_of(0) / "next");
  const auto [rank, step_number] = GetParam();
  const auto published = static_cast<int>(CommitStep::PublishTag);
  EXPECT_EQ(is_published, rank == 0 ? step_number > published : step_number >= published);
  EXPECT_EQ(resume(config(), is_published ? 2 : 1), expected(config(), is_published ? 2 : 1));
}

std::vector<std::tuple<std::uint32_t, int>> failures() {
  std::vector<std::tuple<std::uint32_t, int>> all;
  for (const std::uint32_t rank : {0u, 2u})
    for (int at = 1; at <= kCommitStepCount; ++at) all.emplace_back(rank, at);
  for (const std::uint32_t rank : {1u, 3u})
    for (int at = 2; at <= 3; ++at) all.emplace_back(rank, at);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Steps, NodeLocalFailure, testing::ValuesIn(failures()));

}  // namespace
}  // namespace unishard::test
