// Options of DeepSpeed's launcher, as `unishard launch` takes them.
#include "expect.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <filesystem>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class LaunchDeepSpeed : public testing::Test {
 protected:
  LaunchDeepSpeed() {
    write_file(script(), "import sys\nprint('script', sys.argv[1:], __name__)\n");
  }
  std::string script() const { return temp_.path() / "job.py"; }
  static ProcessResult launch(std::vector<std::string> words, const Environment& more = {}) {
    words.insert(words.begin(), {kProgram, "launch", "-n", "1"});
    return run(words, more);
  }

  const TempDir temp_;
};

TEST_F(LaunchDeepSpeed, AScriptIsRunByPython) {
  const ProcessResult result = launch({script(), "--flag", "x"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "script ['--flag', 'x'] __main__\n");
}

TEST_F(LaunchDeepSpeed, NoPythonRunsTheScriptItself) {
  write_file(script(), "#!/bin/sh\necho shell $1\n");
  fs::permissions(script(), fs::perms::owner_all);
  const ProcessResult result = launch({"--no_python", script(), "x"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "shell x\n");
}

TEST_F(LaunchDeepSpeed, ModuleRunsAModule) {
  const ProcessResult result =
      launch({"--module", "job", "x"}, {{"PYTHONPATH", temp_.path().string()}});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "script ['x'] __main__\n");
  const ProcessResult both = launch({"--module", "--no_python", "job"});
  EXPECT_EQ(both.status, 2);
  EXPECT_THAT(both.err, HasSubstr("--module and --no_python exclude each other"));
}

TEST_F(LaunchDeepSpeed, LocalRankIsAnArgumentWhereItIsAskedFor) {
  EXPECT_EQ(launch({"--pass_local_rank", script(), "x"}).out,
            "script ['--local_rank=0', 'x'] __main__\n");
  EXPECT_EQ(launch({"--no_local_rank", script(), "x"}).out, "script ['x'] __main__\n");
  const ProcessResult two = run({kProgram, "launch", "-n", "2", "--pass_local_rank", "--", "bash",
                                 "-c", "echo $RANK=$1", "name"});
  EXPECT_NE(two.status, 0) << "bash takes the argument for an option of its own";
  const ProcessResult echo = run({kProgram, "launch", "-n", "2", "--pass_local_rank", "echo", "x"});
  EXPECT_THAT(echo.out, AllOf(HasSubstr("--local_rank=0 x\n"), HasSubstr("--local_rank=1 x\n")));
}

TEST_F(LaunchDeepSpeed, ThePidFileIsThereWhileTheJobRuns) {
  const ProcessResult result =
      launch({"--save_pid", "bash", "-c", "cat /tmp/$PPID.deepspeed; echo; echo $PPID"});
  EXPECT_EQ(result.status, 0) << result.err;
  const std::string pid = result.out.substr(0, result.out.find('\n'));
  EXPECT_EQ(result.out, pid + "\n" + pid + "\n");
  EXPECT_FALSE(fs::exists("/tmp/" + pid + ".deepspeed"));
}

TEST_F(LaunchDeepSpeed, EachRankHasALog) {
  const std::string logs = temp_.path() / "logs";
  EXPECT_EQ(launch({"--enable_each_rank_log", logs, "echo", "hello"}).status, 0);
  EXPECT_EQ(read_file(logs + "/rank-0.log"), "hello\n");
  EXPECT_EQ(launch({"--enable_each_rank_log=None", "echo", "hello"}).status, 0);
  EXPECT_FALSE(fs::exists("None"));
  EXPECT_EQ(launch({"--enable_each_rank_log", logs, "--log-dir", logs, "true"}).status, 2);
}

TEST_F(LaunchDeepSpeed, WhatIsDoneAnywayIsTaken) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--no_ssh_check"},
                                                {"--force_multi"},
                                                {"--launcher", "pdsh"},
                                                {"--launcher=PDSH"},
                                                {"--log_level", "error"},
                                                {"-q"},
                                                {"--quiet"}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"echo", "done"});
    const ProcessResult result = launch(all);
    EXPECT_EQ(result.status, 0) << words[0] << result.err;
    EXPECT_EQ(result.out, "done\n") << words[0];
  }
}

TEST_F(LaunchDeepSpeed, WhatIsNotDoneIsRefusedByName) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"--launcher", "slurm"}, "srun itself"},
      {{"--launcher", "openmpi"}, "mpirun itself"},
      {{"--launcher", "mvapich"}, "hostfile with ssh"},
      {{"--launcher", "none"}, "is no launcher"},
      {{"--launcher_args", "-x"}, "--ssh-config"},
      {{"--bind_cores_to_rank"}, "taskset or numactl"},
      {{"--bind_core_list", "0-3"}, "taskset or numactl"},
      {{"--autotuning", "run"}, "unishard estimate"},
      {{"--venv_script", "x"}, ".deepspeed_env"},
  };
  for (const auto& [words, reason] : cases) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"echo", "done"});
    const ProcessResult result = launch(all);
    EXPECT_EQ(result.status, 2) << words[0] << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr(words[0]), HasSubstr(reason)));
    EXPECT_EQ(result.out, "");
  }
}

}  // namespace
}  // namespace unishard::test
