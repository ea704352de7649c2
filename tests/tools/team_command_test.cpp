// The verbs that several processes share, as `--procs`, torchrun and mpirun start them.
#include "unishard/format/checkpoint_reader.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> with(std::vector<std::string> words, std::vector<std::string> more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// What torchrun sets.
Environment torchrun(int rank, int size, const std::string& run_id) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_WORLD_SIZE", std::to_string(size)},
          {"TORCHELASTIC_RUN_ID", run_id},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", "29500"}};
}

/// The bytes of a file, or of every file of a folder by its name.
std::map<std::string, std::string> content_of(const fs::path& path) {
  if (fs::is_directory(path)) return read_files_below(path);
  return {{"", read_file(path)}};
}

/// Names of the files of which the two folders (or files) differ.
std::vector<std::string> differences(const fs::path& a, const fs::path& b) {
  const auto one = content_of(a), other = content_of(b);
  std::vector<std::string> names;
  for (const auto& [name, bytes] : one) {
    if (!other.contains(name) || other.at(name) != bytes) names.push_back(name);
  }
  for (const auto& [name, bytes] : other) {
    if (!one.contains(name)) names.push_back(name);
  }
  return names;
}

/// All bytes of data sets and tables of rows, which the save id is not among.
std::vector<std::string> payload_of(const fs::path& tag) {
  const CheckpointReader reader(posix_storage(), tag);
  std::vector<std::string> shards;
  for (const auto& shard : reader.shards()) {
    const std::string file = read_file(shard->path());
    shards.push_back(std::to_string(file.size()));
    for (const DataSetEntry& set : shard->entry().data_sets)
      shards.back() += file.substr(set.offset, set.padded_bytes());
  }
  return shards;
}

class TeamCommand : public testing::Test {
 protected:
  void SetUp() override { write_example(in_, {.bf16 = true, .scale = 160}); }

  std::string path(const std::string& name) const { return temp_.path() / name; }

  /// What stands beside the input: results, and whatever was left behind.
  std::vector<std::string> left_behind() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(temp_.path())) {
      if (entry.path() != in_) names.push_back(entry.path().filename());
    }
    return names;
  }

  void damage(int shard, std::uint64_t at) const {
    const fs::path file = in_ + "/global_step7/shard-0000" + std::to_string(shard) + "-of-00003.h5";
    overwrite(file, at, "damage");
  }

  const TempDir temp_;
  const std::string in_ = temp_.path() / "in";
};

TEST_F(TeamCommand, ReshardWritesTheSamePayload) {
  const ProcessResult one = unishard({"reshard", in_, path("one"), "-w", "5", "-s", "3"});
  ASSERT_EQ(one.status, 0) << one.err;
  for (const std::string procs : {"3", "7"}) {
    const std::string out = path("out" + procs);
    const Json many = report_of({"reshard", in_, out, "-w", "5", "-s", "3", "--procs", procs});
    EXPECT_EQ(many.at("equal"), true) << "rank 0 alone prints";
    EXPECT_EQ(payload_of(out + "/global_step7"), payload_of(path("one/global_step7")));
    EXPECT_EQ(unishard({"verify", out, "--deep"}).status, 0);
    EXPECT_EQ(read_file(out + "/latest"), read_file(path("one/latest")));
  }
  EXPECT_EQ(left_behind().size(), 3u);
}

TEST_F(TeamCommand, ConvertWritesTheSameFiles) {
  for (const auto& [format, name] :
       std::vector<std::pair<std::string, std::string>>{{"safetensors", "model.safetensors"},
                                                        {"deepspeed", "run"},
                                                        {"deepspeed-universal", "run"},
                                                        {"dcp", "run"},
                                                        {"torch", "model.pt"},
                                                        {"hdf5", "model.h5"},
                                                        {"npz", "model.npz"}}) {
    const std::string one = path("one-" + format), many = path("many-" + format);
    for (const std::string& folder : {one, many}) fs::create_directory(folder);
    const bool has_ranks = format == "dcp" || format.starts_with("deepspeed");
    const auto job = has_ranks
                         ? std::vector<std::string>{"--to", format, "-w", "4", "-s", "2", "--json"}
                         : std::vector<std::string>{"--to", format, "--json"};
    const auto alone = unishard(with({"convert", in_, one + "/" + name}, job));
    ASSERT_EQ(alone.status, 0) << format << alone.err;
    const auto shared = unishard(with({"convert", in_, many + "/" + name, "--procs", "3"}, job));
    ASSERT_EQ(shared.status, 0) << format << shared.err;
    EXPECT_EQ(differences(one, many), std::vector<std::string>()) << format;
    auto expected = Json::parse(alone.out), report = Json::parse(shared.out);
    EXPECT_EQ(report.at("checked"), true);
    report["output"] = expected["output"];
    EXPECT_EQ(report, expected);
    const bool is_one_file = format == "torch" || format == "hdf5" || format == "npz";
    EXPECT_EQ(shared.err.find("written by one process") != std::string::npos, is_one_file)
        << format << ": " << shared.err;
  }
}

TEST_F(TeamCommand, ConvertToNativeKeepsTheIdentity) {
  ASSERT_EQ(unishard({"convert", in_, path("ds"), "--to", "deepspeed"}).status, 0);
  const auto done = unishard({"convert", path("ds"), path("out"), "--to", "native", "-w", "6",
                              "--procs", "3", "--compress", "zstd:1"});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(unishard({"diff", in_, path("out")}).status, 0);
  EXPECT_EQ(unishard({"verify", path("out"), "--deep", "--procs", "2"}).status, 0);
}

TEST_F(TeamCommand, ZeroToFp32WritesTheSameModel) {
  for (const std::string name : {"model.safetensors", "model"}) {
    std::vector<std::string> job = {"--dtype", "bf16"};
    if (name == "model") job.insert(job.end(), {"--max_shard_size", "3MB"});
    fs::create_directories(path("one"));
    fs::create_directories(path("many"));
    ASSERT_EQ(unishard(with({"zero_to_fp32", in_, path("one/" + name)}, job)).status, 0);
    const auto many =
        unishard(with({"zero_to_fp32", in_, path("many/" + name), "--procs", "3"}, job));
    ASSERT_EQ(many.status, 0) << many.err;
  }
  EXPECT_EQ(differences(path("one"), path("many")), std::vector<std::string>());
}

TEST_F(TeamCommand, TheOtherNameOfTheProgramTakesProcsToo) {
  const auto done = run({UNISHARD_BIN "/zero_to_fp32", in_, path("m.safetensors"), "--procs", "2"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(unishard({"diff", in_, path("m.safetensors")}).status, 0);
}

TEST_F(TeamCommand, VerifyFindsTheSameDamage) {
  damage(0, 1 << 20);
  damage(1, 5 << 20);
  damage(1, 3 << 20);
  damage(2, 2 << 20);
  const Json report = report_of({"verify", in_, "--deep"}, 1);
  EXPECT_EQ(report.at("findings").size(), 4u) << report;
  for (const std::string procs : {"2", "3", "16"}) {
    EXPECT_EQ(report_of({"verify", in_, "--deep", "--procs", procs}, 1), report);
    EXPECT_EQ(unishard({"verify", in_, "--deep", "--procs", procs}).out,
              unishard({"verify", in_, "--deep"}).out);
  }
  EXPECT_TRUE(left_behind().empty());
}

TEST_F(TeamCommand, VerifyOfASoundCheckpointAndOfOtherFormats) {
  ASSERT_EQ(unishard({"convert", in_, path("model.pt"), "--to", "torch"}).status, 0);
  ASSERT_EQ(unishard({"convert", in_, path("m.safetensors"), "--to", "safetensors"}).status, 0);
  write_file(path("bad.safetensors"), "garbage!garbage");
  fs::copy_file(path("model.pt"), path("bad.pt"));
  overwrite(path("bad.pt"), 1 << 20, "damage");
  for (const std::string& file :
       {in_, path("model.pt"), path("m.safetensors"), path("bad.safetensors"), path("bad.pt")}) {
    const ProcessResult one = unishard({"verify", file, "--deep", "--json"});
    const ProcessResult many = unishard({"verify", file, "--deep", "--json", "--procs", "3"});
    EXPECT_EQ(many.status, one.status) << file << many.err;
    EXPECT_EQ(many.out, one.out);
  }
}

TEST_F(TeamCommand, StartedAsTorchrunDoes) {
  const std::string out = path("new/folder/out");
  std::vector<Process> processes;
  for (int rank = 0; rank < 3; ++rank)
    processes.emplace_back(std::vector<std::string>{kProgram, "reshard", in_, out, "-w", "4"},
                           torchrun(rank, 3, "job"));
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    const ProcessResult result = processes[rank].wait();
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.out.empty(), rank != 0) << result.out;
    EXPECT_EQ(result.err.empty(), rank != 0) << result.err;
  }
  EXPECT_EQ(unishard({"diff", in_, out}).status, 0);
  EXPECT_EQ(left_behind(), std::vector<std::string>{"new"}) << "the meeting place is gone";
}

TEST_F(TeamCommand, VerifyStartedAsTorchrunDoesLeavesNothing) {
  const TempDir temporary;
  std::vector<Process> processes;
  for (int rank = 0; rank < 2; ++rank) {
    Environment env = torchrun(rank, 2, "verify");
    env.emplace_back("TMPDIR", temporary.path().string());
    processes.emplace_back(std::vector<std::string>{kProgram, "verify", in_, "--deep"}, env);
  }
  for (Process& process : processes) EXPECT_EQ(process.wait().status, 0);
  EXPECT_TRUE(fs::is_empty(temporary.path()));
  EXPECT_TRUE(left_behind().empty());
}

TEST_F(TeamCommand, StartedByMpirun) {
  if (run({"mpirun", "--version"}).out.find("Open MPI") == std::string::npos)
    GTEST_SKIP() << "Open MPI's mpirun is not installed";
  const Environment env = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                           {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
  const std::vector<std::string> mpirun = {"mpirun", "-np", "3", "--oversubscribe", kProgram};
  const auto done = run(with(mpirun, {"zero_to_fp32", in_, path("many.safetensors")}), env);
  ASSERT_EQ(done.status, 0) << done.err;
  ASSERT_EQ(unishard({"zero_to_fp32", in_, path("one.safetensors")}).status, 0);
  EXPECT_EQ(read_file(path("many.safetensors")), read_file(path("one.safetensors")));
  const auto verified = run(with(mpirun, {"verify", in_, "--deep"}), env);
  EXPECT_EQ(verified.status, 0) << verified.err;
  EXPECT_EQ(verified.out, unishard({"verify", in_, "--deep"}).out);
}

TEST_F(TeamCommand, AFolderThatIsNotThereIsSaid) {
  const auto none = unishard({"verify", path("none"), "--deep", "--procs", "2"});
  EXPECT_EQ(none.status, 3);
  EXPECT_NE(none.err.find("none does not exist"), std::string::npos) << none.err;
  const auto temporary =
      unishard({"verify", in_, "--deep", "--procs", "2"}, {{"TMPDIR", path("none")}});
  EXPECT_EQ(temporary.status, 3);
  EXPECT_NE(temporary.err.find("TMPDIR"), std::string::npos) << temporary.err;
}

TEST_F(TeamCommand, ProcsOneIgnoresALauncher) {
  const auto done = unishard({"reshard", in_, path("out"), "-w", "2", "--procs", "1"},
                             torchrun(1, 3, "training"));
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(unishard({"diff", in_, path("out")}).status, 0);
  EXPECT_EQ(unishard({"verify", in_, "--deep", "--procs", "1"}, torchrun(1, 3, "x")).status, 0);
}

TEST_F(TeamCommand, WhatCannotBeSplitIsRank0s) {
  for (const std::vector<std::string>& job : std::vector<std::vector<std::string>>{
           {"verify", in_}, {"reshard", in_, path("out"), "-w", "2", "--dry-run"}}) {
    const auto first = unishard(job, torchrun(0, 3, "x")),
               second = unishard(job, torchrun(1, 3, "x"));
    EXPECT_EQ(first.status, 0) << first.err;
    // The free space may change at any time.
    const auto stable = [](const std::string& out) { return out.substr(0, out.find("disk:")); };
    EXPECT_FALSE(first.out.empty());
    EXPECT_EQ(stable(first.out), stable(unishard(job).out));
    EXPECT_EQ(second.status, 0) << second.err;
    EXPECT_EQ(second.out, "");
  }
}

TEST_F(TeamCommand, AFailureAnywhereEndsAllWithOneMessage) {
  damage(1, 5 << 20);
  const ProcessResult one = unishard({"reshard", in_, path("one"), "-w", "4"});
  EXPECT_EQ(one.status, 4) << one.err;
  const ProcessResult many = unishard({"reshard", in_, path("out"), "-w", "4", "--procs", "4"});
  EXPECT_EQ(many.status, 4) << many.err;
  EXPECT_NE(many.err.find("shard-00001-of-00003.h5"), std::string::npos) << many.err;
  EXPECT_EQ(many.err.find("error: "), many.err.rfind("error: ")) << many.err;
  EXPECT_FALSE(fs::exists(path("out")));
  const ProcessResult there = unishard({"zero_to_fp32", in_, in_, "--procs", "3"});
  EXPECT_EQ(there.status, 3) << there.err;
  EXPECT_EQ(there.err.find("error: "), there.err.rfind("error: ")) << there.err;
}

TEST_F(TeamCommand, ProcessesWithOtherArgumentsAreRefused) {
  std::vector<Process> processes;
  for (int rank = 0; rank < 2; ++rank)
    processes.emplace_back(std::vector<std::string>{kProgram, "reshard", in_, path("out"), "-w",
                                                    rank == 0 ? "4" : "5"},
                           torchrun(rank, 2, "job"));
  const ProcessResult first = processes[0].wait(), second = processes[1].wait();
  EXPECT_EQ(first.status, 2) << first.err;
  EXPECT_EQ(second.status, 2) << second.err;
  EXPECT_NE(first.err.find("rank 1 would write another result than rank 0"), std::string::npos)
      << first.err;
  EXPECT_FALSE(fs::exists(path("out")));
}

/// Jobs that last, so that something can happen to them: compressing well takes seconds.
class TeamDisturbed : public TeamCommand {
 protected:
  std::vector<std::string> slow(std::vector<std::string> more = {}) const {
    return with({kProgram, "reshard", in_, path("out"), "-w", "6", "--threads", "1", "--compress",
                 "zstd:19"},
                std::move(more));
  }

  /// Waits until shards are being written. False when the job ended before.
  bool wait_until_written(Process& process) const {
    while (process.running()) {
      if (fs::exists(path("out"))) {
        for (const auto& entry : fs::recursive_directory_iterator(path("out"))) {
          if (entry.path().extension() == ".h5") return true;
        }
      }
      std::this_thread::yield();
    }
    return false;
  }

  /// The process that has this rank among those that `parent` started; 0 when it is not there.
  static pid_t child_with_rank(pid_t parent, int rank) {
    const std::string wanted("\0RANK=", 6);
    std::ifstream children("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) +
                           "/children");
    for (pid_t child = 0; children >> child;) {
      std::ifstream file("/proc/" + std::to_string(child) + "/environ");  // it may have ended
      const std::string variables = '\0' + std::string{std::istreambuf_iterator<char>(file), {}};
      if (variables.find(wanted + std::to_string(rank) + std::string(1, '\0')) != std::string::npos)
        return child;
    }
    return 0;
  }

  void expect_nothing_published() const {
    EXPECT_FALSE(fs::exists(path("out/latest")));
    EXPECT_FALSE(fs::exists(path("out/global_step7")));
  }
};

TEST_F(TeamDisturbed, AKilledProcessOfProcsLeavesNothing) {
  Process process(slow({"--procs", "3"}));
  ASSERT_TRUE(wait_until_written(process));
  const pid_t victim = child_with_rank(process.pid(), 1);
  ASSERT_GT(victim, 0);
  ASSERT_EQ(::kill(victim, SIGKILL), 0);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.status, 128 + SIGKILL) << result.err;
  EXPECT_NE(result.err.find("rank 1 (pid " + std::to_string(victim) + ")"), std::string::npos)
      << result.err;
  EXPECT_EQ(left_behind(), std::vector<std::string>{}) << "rank 0 has cleared up";
}

TEST_F(TeamDisturbed, AKilledFirstProcessPublishesNothingAndTheNextJobClearsUp) {
  Process process(slow({"--procs", "3"}));
  ASSERT_TRUE(wait_until_written(process));
  const pid_t first = child_with_rank(process.pid(), 0);
  std::vector<pid_t> all = {first, child_with_rank(process.pid(), 1),
                            child_with_rank(process.pid(), 2)};
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  EXPECT_EQ(process.wait().status, 128 + SIGKILL);
  for (const pid_t each : all) EXPECT_NE(::kill(each, 0), 0) << each;
  expect_nothing_published();
  const auto again = unishard({"reshard", in_, path("out"), "-w", "6", "--procs", "2"});
  EXPECT_EQ(again.status, 0) << again.err;
  std::size_t entries = 0;
  for (const auto& entry : fs::directory_iterator(path("out"))) entries += !entry.path().empty();
  EXPECT_EQ(entries, 2u) << "the tag and latest";
}

TEST_F(TeamDisturbed, WithoutALauncherTheOthersNoticeADeath) {
  std::vector<Process> processes;
  for (int rank = 0; rank < 3; ++rank) processes.emplace_back(slow(), torchrun(rank, 3, "job"));
  ASSERT_TRUE(wait_until_written(processes[0]));
  processes[1].signal(SIGKILL);
  EXPECT_EQ(processes[1].wait().status, 128 + SIGKILL);
  const ProcessResult first = processes[0].wait();
  EXPECT_EQ(first.status, 3);
  EXPECT_NE(first.err.find("terminated unexpectedly"), std::string::npos) << first.err;
  EXPECT_EQ(processes[2].wait().status, 3);
  EXPECT_EQ(left_behind(), std::vector<std::string>{});
}

TEST_F(TeamDisturbed, ACrashedJobDoesNotDisturbTheNextOfTheSameName) {
  {
    std::vector<Process> processes;
    for (int rank = 0; rank < 3; ++rank) processes.emplace_back(slow(), torchrun(rank, 3, "job"));
    ASSERT_TRUE(wait_until_written(processes[0]));
    for (Process& process : processes) process.signal(SIGKILL);
    for (Process& process : processes) EXPECT_EQ(process.wait().status, 128 + SIGKILL);
  }
  EXPECT_EQ(left_behind().size(), 2u) << "out, and the meeting place";
  std::vector<Process> processes;
  const std::vector<std::string> job = {kProgram, "reshard", in_, path("out"), "-w", "6"};
  for (int rank = 0; rank < 3; ++rank) processes.emplace_back(job, torchrun(rank, 3, "job"));
  for (Process& process : processes) {
    const ProcessResult result = process.wait();
    EXPECT_EQ(result.status, 0) << result.err;
  }
  EXPECT_EQ(unishard({"diff", in_, path("out")}).status, 0);
  EXPECT_EQ(left_behind(), std::vector<std::string>{"out"});
}

TEST_F(TeamDisturbed, TheSignalThatStoppedOneIsTheStatusOfAll) {
  std::vector<Process> processes;
  for (int rank = 0; rank < 3; ++rank) processes.emplace_back(slow(), torchrun(rank, 3, "job"));
  ASSERT_TRUE(wait_until_written(processes[0]));
  processes[1].signal(SIGINT);
  for (Process& process : processes) {
    const ProcessResult result = process.wait();
    EXPECT_EQ(result.status, 128 + SIGINT) << result.err;
  }
  EXPECT_FALSE(fs::exists(path("out")));
}

// Whenever a process dies: either nothing is there and the status says so, or the result is whole
// and the status is 0. The kill comes as soon as the tag is there, while the others still wait.
TEST_F(TeamDisturbed, ADeathAfterThePublicationLeavesASuccess) {
  int published = 0;
  for (int round = 0; round < 8; ++round) {
    fs::remove_all(path("out"));
    Process process({kProgram, "reshard", in_, path("out"), "-w", "3", "--procs", "3"});
    pid_t victim = 0;
    while (process.running() && victim == 0) victim = child_with_rank(process.pid(), 1);
    while (process.running() && !fs::exists(path("out/global_step7"))) std::this_thread::yield();
    ::kill(victim, round % 2 == 0 ? SIGKILL : SIGTERM);
    const ProcessResult result = process.wait();
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(unishard({"verify", path("out"), "--deep"}).status, 0);
    published += result.err.find("complete") != std::string::npos;
  }
  std::cout << published << " of 8 died before the job had ended\n";
  EXPECT_EQ(left_behind(), std::vector<std::string>{"out"});
}

TEST_F(TeamDisturbed, SigtermEndsAll) {
  Process process(slow({"--procs", "3"}));
  ASSERT_TRUE(wait_until_written(process));
  process.signal(SIGTERM);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.err;
  EXPECT_NE(result.err.find("stopped on request"), std::string::npos) << result.err;
  EXPECT_FALSE(fs::exists(path("out")));
}

}  // namespace
}  // namespace unishard::test
