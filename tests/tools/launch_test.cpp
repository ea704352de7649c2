// `unishard launch` with real processes.
#include "program.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace unishard::test {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> launch(int ranks, const std::string& script,
                                std::vector<std::string> options = {}) {
  std::vector<std::string> out = {kProgram, "launch", "--nproc-per-node", std::to_string(ranks)};
  out.insert(out.end(), options.begin(), options.end());
  out.insert(out.end(), {"--", "bash", "-c", script});
  return out;
}

/// Waits up to ten seconds.
template <class Condition>
bool eventually(Condition&& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

/// Pids that processes wrote to `<folder>/<name>`.
std::vector<pid_t> pids_in(const std::filesystem::path& folder) {
  std::vector<pid_t> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    pid_t pid = 0;
    if (std::ifstream(entry.path()) >> pid) out.push_back(pid);
  }
  return out;
}

bool gone(pid_t pid) { return ::kill(pid, 0) != 0; }

TEST(Launch, SetsTorchrunsVariables) {
  const ProcessResult result = run(
      launch(3,
             "echo $RANK/$LOCAL_RANK/$WORLD_SIZE/$LOCAL_WORLD_SIZE/$MASTER_ADDR/$OMP_NUM_THREADS "
             "$((MASTER_PORT > 0))"),
      {{"OMP_NUM_THREADS", "7"}});
  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* line :
       {"0/0/3/3/127.0.0.1/7 1\n", "1/1/3/3/127.0.0.1/7 1\n", "2/2/3/3/127.0.0.1/7 1\n"}) {
    EXPECT_NE(result.out.find(line), std::string::npos) << result.out;
  }
}

TEST(Launch, PassesTheProgramsOwnOptionsOn) {
  const ProcessResult result = unishard({"launch", "-n", "1", "echo", "--help", "-n", "--", "x"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("--help -n -- x"), std::string::npos) << result.out;
}

TEST(Launch, PrefixesLines) {
  const ProcessResult result = run(launch(2, "printf 'a\\nb'; echo e >&2", {"--prefix-output"}));
  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* line : {"[rank 0] a\n", "[rank 1] a\n", "[rank 0] b\n", "[rank 1] b\n"}) {
    EXPECT_NE(result.out.find(line), std::string::npos) << result.out;
  }
  EXPECT_NE(result.err.find("[rank 1] e\n"), std::string::npos) << result.err;
}

TEST(Launch, AKilledRankStopsTheOthersAndIsNamed) {
  const TempDir pids;
  const std::string script =
      "echo $$ > " + pids.path().string() + "/$RANK; [ $RANK = 1 ] && kill -9 $$; sleep 60";
  const auto begin = Clock::now();
  const ProcessResult result = run(launch(3, script));
  EXPECT_EQ(result.status, 128 + SIGKILL);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  EXPECT_NE(result.err.find("rank 1 (pid "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("signal 9 (SIGKILL)"), std::string::npos) << result.err;
  for (const pid_t pid : pids_in(pids.path())) EXPECT_TRUE(gone(pid)) << pid;
}

TEST(Launch, TheStatusOfTheRankWithTheReasonCounts) {
  // Rank 1 ends with 3 because of rank 0, but before it.
  const ProcessResult result =
      run(launch(2, "if [ $RANK = 1 ]; then exit 3; fi; sleep 0.1; exit 4"));
  EXPECT_EQ(result.status, 4) << result.err;
  EXPECT_NE(result.err.find("rank 0 (pid "), std::string::npos) << result.err;
  // What a rank answers to SIGTERM does not count.
  const ProcessResult stopped =
      run(launch(2,
                 "if [ $RANK = 1 ]; then sleep 0.5; exit 3; fi; trap 'exit 4' TERM; while true; do "
                 "sleep 0.05; done"));
  EXPECT_EQ(stopped.status, 3) << stopped.err;
}

TEST(Launch, ARankThatIgnoresSigtermIsKilled) {
  const TempDir pids;
  const std::string script = "trap '' TERM; echo $$ > " + pids.path().string() +
                             "/$RANK; if [ $RANK = 0 ]; then while [ ! -s " + pids.path().string() +
                             "/1 ]; do sleep 0.05; done; exit 3; fi; while true; do sleep 1; done";
  const auto begin = Clock::now();
  const ProcessResult result = run(launch(2, script));
  EXPECT_EQ(result.status, 3) << result.err;
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  for (const pid_t pid : pids_in(pids.path())) EXPECT_TRUE(gone(pid)) << pid;
}

TEST(Launch, ForwardsSigterm) {
  const TempDir pids;
  const std::string folder = pids.path().string();
  Process process(launch(2, "trap 'echo stopped; exit 0' TERM; echo $$ > " + folder +
                                "/$RANK; while true; do :; done"));
  ASSERT_TRUE(eventually([&] { return pids_in(pids.path()).size() == 2; }));
  process.signal(SIGTERM);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "stopped\nstopped\n");
}

TEST(Launch, ASecondSignalKillsRanksThatIgnoreIt) {
  const TempDir pids;
  Process process(launch(2, "trap '' TERM; echo $$ > " + pids.path().string() +
                                "/$RANK; while true; do sleep 0.1; done"));
  ASSERT_TRUE(eventually([&] { return pids_in(pids.path()).size() == 2; }));
  process.signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  process.signal(SIGTERM);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.status, 128 + SIGKILL) << result.err;
  for (const pid_t pid : pids_in(pids.path())) EXPECT_TRUE(gone(pid)) << pid;
}

TEST(Launch, AnUnknownOptionIsNoProgram) {
  for (const std::string option : {"--nnodes", "--rdzv-backend"}) {
    const ProcessResult result =
        run({UNISHARD_BIN "/unishard", "launch", "-n", "2", option, "1", "--", "true"});
    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.err.find("unknown option \"" + option + "\""), std::string::npos)
        << result.err;
  }
}

TEST(Launch, KilledLauncherLeavesNoRank) {
  const TempDir pids;
  Process process(launch(2, "echo $$ > " + pids.path().string() + "/$RANK; exec sleep 60"));
  ASSERT_TRUE(eventually([&] { return pids_in(pids.path()).size() == 2; }));
  process.signal(SIGKILL);
  process.wait();
  for (const pid_t pid : pids_in(pids.path()))
    EXPECT_TRUE(eventually([&] { return gone(pid); })) << pid;
}

TEST(Launch, WhatARankLeftBehindIsKilled) {
  const TempDir pids;
  const ProcessResult result =
      run(launch(1, "sleep 60 & echo $! > " + pids.path().string() + "/child"));
  EXPECT_EQ(result.status, 0);
  ASSERT_EQ(pids_in(pids.path()).size(), 1u);
  EXPECT_TRUE(eventually([&] { return gone(pids_in(pids.path())[0]); }));
}

// A supervisor may ignore the signal, and exec() passes that on.
TEST(Launch, EndsWhereItsParentIgnoresSigchld) {
  const std::string script = "trap '' CHLD; exec timeout 20 \"$@\"";
  std::vector<std::string> words = {"bash", "-c", script, "bash"};
  const std::vector<std::string> command = launch(2, "exit 0");
  words.insert(words.end(), command.begin(), command.end());
  EXPECT_EQ(run(words).status, 0);
}

TEST(Launch, AHangupUnderNohupIsIgnoredByTheRanksToo) {
  std::vector<std::string> words = {"bash", "-c", "trap '' HUP; exec \"$@\"", "bash"};
  const std::vector<std::string> command = launch(1, "kill -HUP $$; echo goes on");
  words.insert(words.end(), command.begin(), command.end());
  const ProcessResult result = run(words);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "goes on\n");
  EXPECT_NE(run(command).status, 0) << "without nohup";
}

TEST(Launch, LostOutputIsSaidAndIsAStatus) {
  std::vector<std::string> words = {"bash", "-c", "exec \"$@\" > /dev/full", "bash"};
  const std::vector<std::string> command = launch(2, "echo one; echo two", {"--prefix-output"});
  words.insert(words.end(), command.begin(), command.end());
  const ProcessResult result = run(words);
  EXPECT_EQ(result.status, 3);
  EXPECT_NE(result.err.find("warning: output of the ranks cannot be written"), std::string::npos)
      << result.err;
}

// The ranks write their messages at the same time, each in one piece.
TEST(Launch, AMissingProgramIsSaid) {
  const ProcessResult result = unishard({"launch", "-n", "8", "/no/such/program"});
  EXPECT_EQ(result.status, 127);
  std::istringstream lines(result.err);
  std::size_t messages = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("exited with status 127") != std::string::npos) continue;
    EXPECT_EQ(line,
              "unishard launch: error: cannot start /no/such/program: No such file or directory");
    ++messages;
  }
  EXPECT_GE(messages, 1U) << result.err;
  EXPECT_EQ(unishard({"launch", "-n", "2"}).status, 2);
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Launch, EachRankHasALogFile) {
  const TempDir folder;
  const std::string logs = (folder.path() / "new" / "logs").string();
  for (int i = 0; i < 2; ++i) {
    const ProcessResult result =
        run(launch(2, "echo out of $RANK; echo err of $RANK >&2", {"--log-dir", logs}));
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.out.find("out of 1\n"), std::string::npos) << result.out;
    EXPECT_EQ(result.out.find("[rank"), std::string::npos) << result.out;
    EXPECT_NE(result.err.find("err of 0\n"), std::string::npos) << result.err;
  }
  for (const std::string rank : {"0", "1"}) {
    const std::string text = text_of(logs + "/rank-" + rank + ".log");
    for (const std::string stream : {"out", "err"}) {
      const std::size_t first = text.find(stream + " of " + rank + "\n");
      ASSERT_NE(first, std::string::npos) << text;
      EXPECT_NE(text.find(stream + " of " + rank + "\n", first + 1), std::string::npos)
          << "the second run replaced the log of the first";
    }
  }
}

TEST(Launch, ALogThatCannotBeWrittenIsSaidAndIsAStatus) {
  const TempDir folder;
  std::filesystem::create_directory(folder.path() / "rank-1.log");
  const ProcessResult result = run(launch(2, "echo $RANK", {"--log-dir", folder.path().string()}));
  EXPECT_EQ(result.status, 3);
  EXPECT_NE(result.err.find("rank-1.log"), std::string::npos) << result.err;
  EXPECT_NE(result.out.find("1\n"), std::string::npos) << "the rank must run on";
  EXPECT_EQ(run(launch(1, "true", {"--log-dir", "/dev/null/logs"})).status, 3);
}

TEST(Launch, AFailedJobStartsAgain) {
  const std::string script =
      "echo $TORCHELASTIC_RESTART_COUNT/$RANK; [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 "
      "] "
      "&& exit 7; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 60";
  const ProcessResult result = run(launch(2, script, {"--max-restarts", "2"}));
  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* line : {"0/1\n", "1/0\n", "1/1\n"})
    EXPECT_NE(result.out.find(line), std::string::npos) << result.out;
  EXPECT_NE(result.err.find("exited with status 7; starting again with 2 ranks (restart 1 of 2)"),
            std::string::npos)
      << result.err;
}

TEST(Launch, TheLastFailureOfAllAttemptsIsTheStatus) {
  const ProcessResult result =
      run(launch(1, "echo x; exit $((7 + TORCHELASTIC_RESTART_COUNT))", {"--max-restarts", "2"}));
  EXPECT_EQ(result.status, 9) << result.err;
  EXPECT_EQ(result.out, "x\nx\nx\n");
}

TEST(Launch, WhatAnotherTryCannotHelpIsNotTriedAgain) {
  for (const std::string status : {"2", "127"}) {
    const ProcessResult result = run(launch(1, "echo x; exit " + status, {"--max-restarts", "5"}));
    EXPECT_EQ(std::to_string(result.status), status) << result.err;
    EXPECT_EQ(result.out, "x\n");
  }
}

TEST(Launch, AJobThatASignalStoppedDoesNotStartAgain) {
  const TempDir pids;
  Process process(launch(1,
                         "trap 'echo stopped; exit 7' TERM; echo $$ > " + pids.path().string() +
                             "/$RANK; while true; do sleep 0.05; done",
                         {"--max-restarts", "5"}));
  ASSERT_TRUE(eventually([&] { return pids_in(pids.path()).size() == 1; }));
  process.signal(SIGTERM);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.status, 7) << result.err;
  EXPECT_EQ(result.out, "stopped\n");
}

TEST(Launch, ASignalBetweenTwoAttemptsEndsTheLauncher) {
  const TempDir folder;
  const std::string started = (folder.path() / "started").string();
  Process process(launch(1, "echo x >> " + started + "; exit 7", {"--max-restarts", "1000"}));
  ASSERT_TRUE(eventually([&] { return text_of(started) == "x\n"; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(400));  // in the pause of a second
  process.signal(SIGTERM);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.err;
  EXPECT_EQ(text_of(started), "x\n");
}

TEST(Launch, PassesInterfaceAndTimeoutOn) {
  const ProcessResult result = run(
      launch(1, "echo $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME $UNISHARD_TIMEOUT $DEEPSPEED_TIMEOUT",
             {"--interface", "eth7", "--timeout", "61"}));
  EXPECT_EQ(result.out, "eth7 eth7 61 2\n") << result.err;
}

// `localhost` needs no ssh.
TEST(Launch, TakesSlotsOfThisMachineFromAHostfile) {
  const TempDir folder;
  const std::string hostfile = (folder.path() / "hosts").string();
  std::ofstream(hostfile) << "localhost slots=4\n";
  const std::string script =
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $CUDA_VISIBLE_DEVICES $MASTER_ADDR $GROUP_RANK";
  const ProcessResult result =
      unishard({"launch", "-H", hostfile, "-i", "localhost:1,3", "--", "bash", "-c", script});
  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* line : {"0 0 2 1,3 127.0.0.1 0\n", "1 1 2 1,3 127.0.0.1 0\n"})
    EXPECT_NE(result.out.find(line), std::string::npos) << result.out;
  const ProcessResult all =
      unishard({"launch", "--num_gpus", "3", "--", "bash", "-c", "echo $RANK"});
  EXPECT_EQ(all.status, 0) << all.err;
  EXPECT_EQ(all.out.size(), 6u) << all.out;
}

TEST(Launch, AnAgentEndsWithoutItsLauncher) {
  const std::string agent = kProgram + " launch --agent --host-timeout 2 > /dev/null";
  const auto begin = Clock::now();
  EXPECT_EQ(run({"sh", "-c", agent + " < /dev/null"}).status, 3);
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(900));
  EXPECT_EQ(run({"bash", "-c", agent + " < <(exec sleep 20)"}).status, 3) << "silence";
  EXPECT_GT(Clock::now() - begin, std::chrono::milliseconds(1000));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(9));
  EXPECT_EQ(run({"sh", "-c", "echo nonsense | " + agent}).status, 4);
}

TEST(Launch, RefusesOptionsThatContradictEachOther) {
  const TempDir folder;
  const std::string hostfile = (folder.path() / "hosts").string();
  std::ofstream(hostfile) << "localhost slots=4\nother slots=2\n";
  const auto refused = [&](std::vector<std::string> options, const std::string& why,
                           int status = 2) {
    options.insert(options.begin(), "launch");
    options.insert(options.end(), {"--", "echo", "started"});
    const ProcessResult result = unishard(options);
    EXPECT_EQ(result.status, status) << why << ": " << result.out;
    EXPECT_NE(result.err.find(why), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  };
  refused({"-n", "2", "--hostfile", hostfile}, "-n is for one machine");
  refused({"-n", "2", "--num_gpus", "2"}, "-n is for one machine");
  refused({"--hostfile", hostfile, "--no_ssh"}, "--no_ssh needs --node_rank");
  refused({"--hostfile", hostfile, "--node_rank", "1"}, "--node_rank needs --no_ssh");
  refused({"--hostfile", hostfile, "--no_ssh", "--node_rank", "2"}, "--node_rank is 2");
  refused({"--hostfile", hostfile, "--no_ssh", "--node_rank", "1", "--max-restarts", "1"},
          "--max-restarts needs one launcher");
  refused({"--hostfile", hostfile, "-i", "other", "-e", "localhost"}, "exclude each other");
  refused({"--hostfile", hostfile + "x"}, "is not there", 3);
  refused({"--host-timeout", "nan", "-n", "1"}, "--host-timeout");
  std::ofstream(hostfile) << "-oProxyCommand=touch slots=1\n";
  refused({"--hostfile", hostfile}, "is not the name of a host");
}

}  // namespace
}  // namespace unishard::test
