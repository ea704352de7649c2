// train_gpt on nodes with disks of their own, and what it prints of its steps.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/commit.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "ranks.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

/// Four ranks on two nodes, which see different folders.
class TrainGptOnNodes : public testing::Test {
 protected:
  TrainGptOnNodes() {
    std::string text;
    for (int line = 0; line < 300; ++line) text += fmt::format("line {} of a text\n", line * line);
    write_file(path("text"), text);
    configure(R"(, "checkpoint": {"use_node_local_storage": true})");
  }
  std::string path(const std::string& name) const { return temp_.path() / name; }
  void configure(const std::string& more) const {
    write_file(path("ds.json"),
               R"({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 1,
                   "zero_optimization": {"stage": 2})" +
                   more + "}");
  }
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> argv{UNISHARD_BIN "/train_gpt",
                                  "--config",
                                  path("ds.json"),
                                  "--data",
                                  path("text"),
                                  "--model",
                                  "nano",
                                  "--layers",
                                  "1",
                                  "--width",
                                  "16"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  /// Starts the ranks as torchrun does, those of node i with `--save <folder of node i>`.
  std::vector<ProcessResult> run_nodes(const std::vector<std::string>& nodes,
                                       const std::vector<std::string>& more,
                                       const std::string& kill_at = "") const {
    const std::string port = std::to_string(free_port());
    const int per_node = 4 / static_cast<int>(nodes.size());
    std::vector<Process> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<std::string> argv = command(more);
      argv.insert(argv.end(), {"--save", path(nodes[static_cast<std::size_t>(rank / per_node)])});
      Environment environment{{"RANK", std::to_string(rank)},
                              {"WORLD_SIZE", "4"},
                              {"LOCAL_RANK", std::to_string(rank % per_node)},
                              {"LOCAL_WORLD_SIZE", std::to_string(per_node)},
                              {"GROUP_RANK", std::to_string(rank / per_node)},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", port},
                              {"OMP_NUM_THREADS", "1"},
                              {"RES_OPTIONS", "timeout:1 attempts:1"}};
      if (!kill_at.empty()) {
        argv[0] = UNISHARD_TESTS_BIN "/killed_train_gpt";
        environment.emplace_back("KILL_AT", kill_at);
      }
      ranks.emplace_back(argv, environment);
    }
    std::vector<ProcessResult> results;
    for (Process& each : ranks) results.push_back(each.wait());
    return results;
  }
  static void expect_all(const std::vector<ProcessResult>& results, int status) {
    for (const ProcessResult& each : results)
      EXPECT_EQ(each.status, status) << each.out << each.err;
  }

  const TempDir temp_;
};

TEST_F(TrainGptOnNodes, SavesResumesAndIsGathered) {
  expect_all(run_nodes({"a", "b"}, {"--steps", "4", "--losses", path("whole")}), 0);
  expect_all(run_nodes({"c", "d"}, {"--steps", "2"}), 0);
  expect_all(run_nodes({"c", "d"}, {"--steps", "4", "--resume", "--losses", path("rest")}), 0);
  EXPECT_FALSE(fs::exists(path("c/global_step4/shard-00002-of-00004.h5")));
  EXPECT_FALSE(fs::exists(path("d/global_step4/shard-00001-of-00004.h5")));
  for (const char* nodes : {"ab", "cd"}) {
    const std::string first(1, nodes[0]), second(1, nodes[1]);
    const ProcessResult gathered = unishard({"gather", path(first), path(second), path(nodes)});
    EXPECT_EQ(gathered.status, 0) << gathered.err;
  }
  EXPECT_EQ(identity_of(path("ab")), identity_of(path("cd")));
  // The gathered checkpoint is a normal one for a run with one folder.
  configure("");
  const auto goes_on = run(command({"--steps", "5", "--resume", path("ab"), "--save", path("e")}));
  EXPECT_EQ(goes_on.status, 0) << goes_on.err;
  EXPECT_THAT(goes_on.out, HasSubstr("resumed global_step4 at step 4"));
}

TEST_F(TrainGptOnNodes, OtherNodesSayWhichFilesAreMissingWhere) {
  expect_all(run_nodes({"a", "b"}, {"--steps", "1"}), 0);
  const auto results = run_nodes({"a", "new"}, {"--steps", "2", "--resume"});
  expect_all(results, 3);
  EXPECT_THAT(results[0].err,
              AllOf(HasSubstr("no node has shard-00002-of-00004.h5, shard-00003-of-00004.h5 (of "
                              "node 1 ("),
                    HasSubstr("has 0 of its 4 shards in " + path("new") + "/global_step1")));
  // Swapped disks hold the same files.
  expect_all(run_nodes({"b", "a"}, {"--steps", "2", "--resume"}), 0);
}

TEST_F(TrainGptOnNodes, ANodeKilledWhileItPublishesGetsTheCheckpointFromItsStagingFolder) {
  expect_all(run_nodes({"a", "b"}, {"--steps", "1"}), 0);
  // The second save of this run is the first after step 1; rank 2 leads node 1.
  const int publish = static_cast<int>(CommitStep::PublishTag);
  run_nodes({"a", "b"}, {"--steps", "2", "--resume", "--keep-last", "1"},
            fmt::format("1 {} 2", publish));
  EXPECT_TRUE(fs::exists(path("a/global_step2")));
  EXPECT_FALSE(fs::exists(path("b/global_step2")));
  const auto results = run_nodes({"a", "b"}, {"--steps", "3", "--resume"});
  expect_all(results, 0);
  EXPECT_THAT(results[0].out, HasSubstr("resumed global_step2 at step 2"));
  EXPECT_TRUE(fs::exists(path("b/global_step2")));
}

TEST_F(TrainGptOnNodes, OneFolderForAllNodesIsRefused) {
  const auto results = run_nodes({"a", "a"}, {"--steps", "1"});
  expect_all(results, 2);
  EXPECT_THAT(results[0].err, HasSubstr("see the same folder"));
}

TEST_F(TrainGptOnNodes, PrintsTimesMemoryStateAndAProfile) {
  configure(R"(, "wall_clock_breakdown": true, "memory_breakdown": true, "dump_state": true,
      "activation_checkpointing": {},
      "flops_profiler": {"enabled": true, "profile_step": 2, "recompute_fwd_factor": 1})");
  const std::string out = run_ranks(command({"--steps", "3"}), 2)[0].out;
  EXPECT_THAT(out, HasSubstr("wall_clock_breakdown"));
  EXPECT_THAT(out, ContainsRegex("time \\(ms\\): forward [0-9.]+, backward [0-9.]+, step [0-9.]+"));
  EXPECT_THAT(out, AllOf(HasSubstr("memory rank 0: "), HasSubstr("memory rank 1: ")));
  EXPECT_THAT(out, AllOf(HasSubstr("profile of step 2: 4 samples"), HasSubstr("  h.0 "),
                         HasSubstr("  lm_head "), HasSubstr("tokens/s"),
                         ContainsRegex("\\(MFU\\) [0-9.]+ %")));
}

TEST_F(TrainGptOnNodes, TheProfileGoesToAFileAndTimersChangeNoBit) {
  configure("");
  run_ranks(command({"--steps", "2", "--save", path("plain")}), 2);
  configure(fmt::format(R"(, "wall_clock_breakdown": true,
      "flops_profiler": {{"enabled": true, "detailed": false, "output_file": "{}"}})",
                        path("profile")));
  const std::string out = run_ranks(command({"--steps", "2", "--save", path("timed")}), 2)[0].out;
  EXPECT_THAT(out, Not(HasSubstr("profile of step")));
  EXPECT_THAT(read_file(path("profile")),
              AllOf(HasSubstr("profile of step 1"), Not(HasSubstr("lm_head"))));
  EXPECT_EQ(identity_of(path("timed")), identity_of(path("plain")));
}

}  // namespace
}  // namespace unishard::test
