// Several programs on one folder at the same time, and outputs that must not be touched.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/staging_names.hpp"

#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::vector<std::string> leftovers_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (is_leftover(name) || name.ends_with(kLockSuffix)) names.push_back(name);
  }
  return names;
}

class Together : public testing::Test {
 protected:
  void SetUp() override { write_example(in_, {.world_size = 4, .bf16 = true, .scale = 20}); }

  /// Both at once: one has the output, the other says why not.
  void expect_one_winner(const std::vector<std::string>& a, const std::vector<std::string>& b) {
    Process first(a), second(b);
    const ProcessResult one = first.wait(), two = second.wait();
    const ProcessResult& loser = one.status == 0 ? two : one;
    EXPECT_EQ(std::min(one.status, two.status), 0) << one.err << two.err;
    EXPECT_EQ(loser.status, 3) << one.err << two.err;
    EXPECT_THAT(loser.err,
                testing::AnyOf(HasSubstr("is being written by process"),
                               HasSubstr("is there already"), HasSubstr("is not empty")));
  }

  const TempDir temp_;
  const std::string in_ = temp_.path() / "in";
};

TEST_F(Together, TwoReshardsOfOneOutputGiveOneWholeCheckpoint) {
  const std::string before = identity_of(in_);
  for (int i = 0; i < 10; ++i) {
    const std::string out = temp_.path() / ("out" + std::to_string(i));
    expect_one_winner({kProgram, "reshard", in_, out, "-w", "3"},
                      {kProgram, "reshard", in_, out, "-w", "5"});
    EXPECT_EQ(identity_of(out), before);
    EXPECT_EQ(leftovers_in(out), std::vector<std::string>{});
  }
}

TEST_F(Together, TwoConversionsOfOneOutputGiveOneWholeResult) {
  struct Case {
    const char *to, *name, *inside;
  };
  for (const Case& row : {Case{"safetensors", "model", ""}, Case{"dcp", "dcp", ""},
                          Case{"deepspeed", "ds", ""}, Case{"torch", "state.pt", ""}}) {
    const std::string out = temp_.path() / row.name;
    std::vector<std::string> command = {kProgram, "convert", in_, out, "--to", row.to};
    if (std::string_view(row.to) == "safetensors") command.emplace_back("--weights-only");
    expect_one_winner(command, command);
    EXPECT_EQ(unishard({"verify", "--deep", out}).status, 0) << row.to;
    EXPECT_EQ(leftovers_in(temp_.path()), std::vector<std::string>{});
  }
}

/// Saves again and again in a child process, keeping one checkpoint, until it is stopped.
class BusyWriter {
 public:
  BusyWriter(const fs::path& folder, std::uint64_t seed) {
    child_ = ::fork();
    if (child_ == 0) run(folder, seed);
  }
  /// False when a save failed.
  bool stop() {
    int status = 0;
    ::kill(child_, SIGTERM);
    ::waitpid(child_, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  static inline volatile std::sig_atomic_t stopped = 0;

  [[noreturn]] static void run(const fs::path& folder, std::uint64_t seed) {
    ::signal(SIGTERM, [](int) { stopped = 1; });
    std::mt19937_64 random(seed);
    CommitOptions options;
    options.keep_last = 1;
    options.on_step = [&](CommitStep) {
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 10));
    };
    try {
      for (std::int64_t i = 1; stopped == 0; ++i) {
        const std::int64_t step = i / 3;  // most tags are new, some replace the one before
        write_example(folder, {.world_size = 2, .step = step, .tag = "t" + std::to_string(step)},
                      posix_storage(), options);
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "a save failed: %s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }

  pid_t child_ = -1;
};

TEST_F(Together, EveryVerbWorksBesideARunThatSavesAndRemoves) {
  const char* const rounds = std::getenv("UNISHARD_TOGETHER_ROUNDS");
  const int count = rounds != nullptr ? std::atoi(rounds) : 8;
  const fs::path run = temp_.path() / "run";
  write_example(run, {.world_size = 2, .step = 0, .tag = "t0"});
  BusyWriter writer(run, 20261122);
  int made = 0;
  for (int i = 0; i < count; ++i) {
    const auto fresh = [&] { return (temp_.path() / ("made" + std::to_string(made++))).string(); };
    std::vector<Process> processes;
    std::vector<std::vector<std::string>> commands = {
        {"verify", run},
        {"verify", "--deep", run},
        {"verify", "--deep", "--all", run},
        {"inspect", run},
        {"inspect", "--tags", run},
        {"inspect", "--stats", "--json", run},
        {"prune", "--keep-last", "1", run},
        {"prune", "--keep-last", "2", run},
        {"diff", run, run},
        {"reshard", run, fresh(), "-w", "3"},
        {"zero_to_fp32", run, fresh() + ".safetensors"},
        {"convert", run, fresh(), "--to", "dcp"}};
    for (std::size_t at = 0; at < commands.size(); at += 3) {
      for (std::size_t j = at; j < at + 3; ++j) {
        auto& command = commands[j];
        command.insert(command.begin(), kProgram);
        processes.emplace_back(command);
      }
      for (std::size_t j = at; j < at + 3; ++j) {
        const ProcessResult result = processes[j].wait();
        const bool may_differ = commands[j][1] == "diff";  // two states, both sound
        EXPECT_TRUE(result.status == 0 || (may_differ && result.status == 1))
            << commands[j][1] << " " << commands[j][2] << ": " << result.status << "\n"
            << result.out << result.err;
      }
    }
  }
  EXPECT_TRUE(writer.stop());
}

TEST_F(Together, AnOutputInsideACheckpointIsRefused) {
  const std::string tag = in_ + "/global_step7";
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"reshard", tag, tag, "-w", "2"},
        {"reshard", in_, tag + "/x/y", "-w", "2"},
        {"convert", tag, tag + "/dcp", "--to", "dcp"},
        {"zero_to_fp32", tag, tag + "/model.safetensors"}}) {
    const ProcessResult result = unishard(arguments);
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("lies inside the checkpoint"));
  }
  EXPECT_EQ(unishard({"verify", "--deep", in_}).status, 0);
}

TEST_F(Together, ALinkToAnEmptyFolderIsWrittenThrough) {
  fs::create_directory(temp_.path() / "disk");
  fs::create_directory_symlink(temp_.path() / "disk", temp_.path() / "out");
  const std::string out = temp_.path() / "out";
  EXPECT_EQ(unishard({"convert", in_, out, "--to", "dcp"}).status, 0);
  EXPECT_TRUE(fs::is_symlink(out));
  EXPECT_TRUE(fs::exists(temp_.path() / "disk/.metadata"));
  fs::create_directory_symlink(temp_.path() / "nowhere", temp_.path() / "dangling");
  for (const char* format : {"dcp", "native"}) {
    const ProcessResult refused =
        unishard({"convert", in_, temp_.path() / "dangling", "--to", format});
    EXPECT_EQ(refused.status, 3);
    EXPECT_NE(refused.err.find("is a link to something that does not exist"), std::string::npos)
        << refused.err;
    EXPECT_NE(refused.err.find("hint: "), std::string::npos) << refused.err;
  }
}

TEST_F(Together, LatestThatIsAFolderIsRefusedBeforeAnythingIsWritten) {
  const fs::path out = temp_.path() / "out";
  fs::create_directories(out / "latest");
  EXPECT_NE(unishard({"reshard", in_, out, "-w", "2"}).status, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(out), {}), 1);
  fs::remove(out / "latest");
  fs::create_directories(out / "latest.writing");
  EXPECT_EQ(unishard({"reshard", in_, out, "-w", "2"}).status, 0);
}

TEST_F(Together, AnInterruptedConversionPublishesNothing) {
  for (int i = 0; i < 20; ++i) {
    const std::string out = temp_.path() / ("out" + std::to_string(i));
    Process process({kProgram, "convert", in_, out, "--to", "deepspeed"});
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * i));
    process.signal(SIGINT);
    const ProcessResult result = process.wait();
    const bool is_there = fs::exists(fs::path(out) / "global_step7");
    EXPECT_EQ(is_there, result.status == 0) << i << result.err;
    if (!fs::exists(out)) continue;
    EXPECT_EQ(leftovers_in(out), std::vector<std::string>{}) << i;
  }
}

}  // namespace
}  // namespace unishard::test
