// Odd surroundings of a process: every verb works, or ends with its documented status and a
// sentence, and publishes nothing half-done.
#include "unishard/format/checkpoint_folder.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class OddEnvironment : public testing::Test {
 protected:
  OddEnvironment() { write_example(in_, {.scale = 20}); }

  /// The program, started by a shell: `how` is a command with "$@" in it.
  static ProcessResult shell(const std::string& how, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"sh", "-c", how, "sh", kProgram});
    return run(std::move(arguments));
  }
  void expect_whole(const Path& checkpoint) {
    EXPECT_EQ(unishard({"diff", in_, checkpoint, "--states", "fp32,weights"}).status, 0);
  }
  /// Nothing but what was there before: no output, no staging.
  void expect_nothing_new() {
    for (const auto& entry : fs::recursive_directory_iterator(temp_.path())) {
      if (entry.is_directory() || entry.path().native().starts_with(in_)) continue;
      ADD_FAILURE() << entry.path();
    }
  }

  const TempDir temp_;
  const std::string in_ = temp_.path() / "in", out_ = temp_.path() / "out",
                    model_ = temp_.path() / "m.safetensors";
};

TEST_F(OddEnvironment, AStandardOutputThatCannotBeWritten) {
  for (const char* how : {"exec \"$@\" >/dev/full", "exec \"$@\" >&-"}) {
    for (const std::vector<std::string>& words :
         std::vector<std::vector<std::string>>{{"inspect", in_},
                                               {"inspect", in_, "--json"},
                                               {"verify", in_, "--deep"},
                                               {"diff", in_, in_},
                                               {"prune", in_, "-k", "1"},
                                               {"env"},
                                               {"completion", "bash"},
                                               {"--help"},
                                               {"inspect", "--help"},
                                               {"--version"}}) {
      const ProcessResult result = shell(how, words);
      EXPECT_EQ(result.status, 3) << how << words[0] << result.err;
      EXPECT_THAT(result.err, HasSubstr("error: writing standard output: "));
    }
  }
}

TEST_F(OddEnvironment, AStandardErrorThatCannotBeWritten) {
  for (const char* how : {"exec \"$@\" 2>/dev/full", "exec \"$@\" 2>&-"}) {
    const ProcessResult said = shell(how, {"zero_to_fp32", in_, model_});
    EXPECT_EQ(said.status, 3);
    EXPECT_THAT(said.out, HasSubstr("error: writing standard error: "));
    if (fs::exists(model_)) expect_whole(model_);
    fs::remove(model_);
    EXPECT_EQ(shell(how, {"zero_to_fp32", in_, model_, "--quiet"}).status, 0);
    expect_whole(model_);
    fs::remove(model_);
    const ProcessResult missing = shell(how, {"inspect", in_ + "x"});
    EXPECT_EQ(missing.status, 3);
    EXPECT_THAT(missing.out, HasSubstr("error: "));
    const ProcessResult usage = shell(how, {"inspect"});
    EXPECT_EQ(usage.status, 2);
    EXPECT_THAT(usage.out, HasSubstr("error: "));
    EXPECT_EQ(shell(how, {"inspect", in_}).status, 0);
  }
}

TEST_F(OddEnvironment, NobodyToTell) {
  for (const char* how : {"exec \"$@\" >/dev/full 2>/dev/full", "exec \"$@\" <&- >&- 2>&-"}) {
    EXPECT_EQ(shell(how, {"inspect", in_}).status, 3);
    EXPECT_EQ(shell(how, {}).status, 3);
  }
}

// A file that gets descriptor 1 or 2 would hold what is printed.
TEST_F(OddEnvironment, ClosedDescriptorsAreNotReused) {
  const std::string how = "exec \"$@\" <&- >&- 2>&-";
  EXPECT_EQ(shell(how, {"reshard", in_, out_, "-w", "2", "-q"}).status, 3);
  EXPECT_EQ(shell(how, {"convert", in_, temp_.path() / "n", "--to", "native", "-q"}).status, 0);
  EXPECT_EQ(shell(how, {"zero_to_fp32", in_, model_, "-q"}).status, 0);
  EXPECT_EQ(unishard({"verify", out_, "--deep"}).status, 0);
  EXPECT_EQ(unishard({"verify", temp_.path() / "n", "--deep"}).status, 0);
  expect_whole(model_);
}

TEST_F(OddEnvironment, APipeThatNobodyReads) {
  const ProcessResult result =
      shell("{ \"$@\"; echo status $? >&2; } | true", {"inspect", in_, "--json"});
  if (result.err.find("status 0") != std::string::npos) GTEST_SKIP() << "the pipe took all of it";
  EXPECT_EQ(result.err, "status 141\n") << "128 + SIGPIPE, without a message";
}

TEST_F(OddEnvironment, AHangupLeavesNothing) {
  write_example(in_, {.step = 9, .tag = "big", .scale = 1500});
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"reshard", in_, out_, "-w", "4"}, {"convert", in_, out_, "--to", "dcp"}}) {
    std::vector<std::string> argv = words;
    argv.insert(argv.begin(), kProgram);
    Process process(argv);
    const auto has_begun = [&] {
      return fs::exists(out_) || fs::exists(out_ + ".partial") ||
             std::distance(fs::directory_iterator(temp_.path()), {}) > 1;
    };
    while (process.running() && !has_begun()) {
    }
    process.signal(SIGHUP);
    const ProcessResult result = process.wait();
    if (result.status == 0) GTEST_SKIP() << "it was done before the signal came";
    EXPECT_EQ(result.status, 128 + SIGHUP) << result.err;
    EXPECT_THAT(result.err, HasSubstr("stopped on request"));
    expect_nothing_new();
    fs::remove_all(out_);
  }
}

/// Starts "$@" without the rights by which root looks into every folder.
std::string without_rights() {
  if (::geteuid() != 0) return "exec \"$@\"";
  return "exec setpriv --bounding-set=-dac_override,-dac_read_search "
         "--inh-caps=-dac_override,-dac_read_search \"$@\"";
}

// Such as lost+found, where a volume is mounted as the folder of a run.
TEST_F(OddEnvironment, AFolderThatMayNotBeLookedIntoDisturbsNothing) {
  write_example(in_, {.step = 9, .tag = "newest"});
  fs::create_directory(in_ + "/lost+found");
  fs::create_symlink("loop", in_ + "/loop");
  const std::vector<std::string> closed = {in_ + "/lost+found",
                                           in_ + "/" + list_tags(posix_storage(), in_)[0].tag};
  for (const std::string& folder : closed) fs::permissions(folder, fs::perms::none);
  if (shell(without_rights(), {"--version"}).status != 0) GTEST_SKIP() << "no setpriv";
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"verify", in_},
                                             {"verify", in_, "--all"},
                                             {"inspect", in_},
                                             {"inspect", in_, "--tags"},
                                             {"prune", in_, "-k", "1"},
                                             {"zero_to_fp32", in_, model_}}) {
    const ProcessResult result = shell(without_rights(), words);
    EXPECT_EQ(result.status, 0) << words[0] << ": " << result.err;
    if (words[0] == "verify") {
      EXPECT_THAT(result.out + result.err, HasSubstr("lost+found is left out"));
    }
  }
  for (const std::string& folder : closed) {
    EXPECT_TRUE(fs::exists(folder));
    fs::permissions(folder, fs::perms::owner_all);
  }
}

TEST_F(OddEnvironment, AnEmptyOutputFolderKeepsItsRights) {
  fs::create_directory(out_);
  fs::permissions(out_, fs::perms::owner_all | fs::perms::group_exec | fs::perms::set_gid);
  const auto before = fs::status(out_).permissions();
  ASSERT_EQ(unishard({"zero_to_fp32", in_, out_}).status, 0);
  EXPECT_EQ(fs::status(out_).permissions(), before);
}

TEST_F(OddEnvironment, AResultReplacesNeitherTheWorkingFolderNorAMountPoint) {
  fs::create_directory(out_);
  const ProcessResult working = shell("cd " + out_ + " && exec \"$@\"", {"zero_to_fp32", in_, "."});
  EXPECT_EQ(working.status, 2);
  EXPECT_THAT(working.err, HasSubstr("is the working folder, which a result cannot replace"));
  const std::string mounting = "mount -t tmpfs none " + out_ + " || exit 77; exec \"$@\"";
  const ProcessResult mounted =
      run({"unshare", "-m", "sh", "-c", mounting, "sh", kProgram, "zero_to_fp32", in_, out_});
  if (mounted.err.find("unshare") != std::string::npos || mounted.status == 77)
    GTEST_SKIP() << "mounting is not allowed here";
  EXPECT_EQ(mounted.status, 2);
  EXPECT_THAT(mounted.err, HasSubstr("is a mount point, which a result cannot replace"));
}

TEST_F(OddEnvironment, AHangupUnderNohupIsIgnored) {
  write_example(in_, {.step = 9, .tag = "big", .scale = 1500});
  Process process(
      {"sh", "-c", "trap '' HUP; exec \"$@\"", "sh", kProgram, "zero_to_fp32", in_, model_});
  while (process.running() && std::distance(fs::directory_iterator(temp_.path()), {}) < 2) {
  }
  process.signal(SIGHUP);
  EXPECT_EQ(process.wait().status, 0);
  EXPECT_TRUE(fs::exists(model_));
}

TEST_F(OddEnvironment, ALimitOnTheSizeOfFiles) {
  const std::string how = "ulimit -f 200; exec \"$@\"";
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"zero_to_fp32", in_, model_},
                                             {"zero_to_fp32", in_, temp_.path() / "m.h5"},
                                             {"zero_to_fp32", in_, temp_.path() / "m.bin"},
                                             {"reshard", in_, out_, "-w", "1"},
                                             {"convert", in_, out_, "--to", "deepspeed"},
                                             {"convert", in_, out_, "--to", "dcp"}}) {
    const ProcessResult result = shell(how, words);
    EXPECT_EQ(result.status, 3) << words[0] << result.err;
    EXPECT_THAT(result.err, HasSubstr("File too large"));
    expect_nothing_new();
    fs::remove_all(out_);
  }
}

// libhdf5 crashes where memory ends: what is too little for it is refused before.
TEST_F(OddEnvironment, ALimitOnTheAddressSpace) {
  int done = 0;
  for (int mebibytes = 80; mebibytes <= 260; mebibytes += 4) {
    const ProcessResult result = shell(fmt::format("ulimit -v {}; exec \"$@\"", mebibytes * 1024),
                                       {"reshard", in_, out_, "-w", "3", "--threads", "4"});
    ASSERT_TRUE(result.status == 0 || result.status == 3) << mebibytes << ": " << result.err;
    if (result.status == 3) {
      EXPECT_THAT(result.err, HasSubstr("ulimit -v")) << mebibytes;
      expect_nothing_new();
    }
    done += result.status == 0 ? 1 : 0;
    fs::remove_all(out_);
  }
  EXPECT_GT(done, 10);
}

// Root is exempt from the limit.
TEST_F(OddEnvironment, ALimitOnTheNumberOfThreads) {
  std::string how = "ulimit -u 3; exec \"$@\"";
  if (::geteuid() == 0) {
    if (run({"setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", kProgram, "env"})
            .status != 0)
      GTEST_SKIP() << "nobody else can run the program here";
    how = "ulimit -u 1; exec setpriv --reuid=65533 --regid=65533 --clear-groups \"$@\"";
    fs::permissions(temp_.path(), fs::perms::all);
  }
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"verify", in_, "--deep", "--threads", "8"},
                                             {"diff", in_, in_, "--threads", "8"},
                                             {"inspect", in_, "--stats"},
                                             {"zero_to_fp32", in_, model_, "--threads", "8"},
                                             {"reshard", in_, out_, "-w", "2", "--threads", "8"}}) {
    const ProcessResult result = shell(how, words);
    EXPECT_EQ(result.status, 0) << words[0] << result.err;
  }
  expect_whole(model_);
  const ProcessResult several =
      shell(how, {"verify", in_, "--deep", "--procs", "2", "--threads", "8"});
  EXPECT_TRUE(several.status == 0 || several.status == 3) << several.status << several.err;
  if (several.status != 0) {
    EXPECT_THAT(several.err, HasSubstr("error: "));
  }
}

TEST_F(OddEnvironment, TooLittleMemoryOfTheMachine) {
  std::vector<std::string> words = {kProgram, "verify", in_, "--deep", "--threads", "64"};
  for (const std::uint64_t mib : {60u, 80u, 100u, 130u, 170u, 250u}) {
    const ProcessResult result = run(words, {}, mib << 20);
    EXPECT_TRUE(result.status == 0 || result.status == 3 || result.status == 127)
        << mib << " MiB: " << result.status << result.err;
    if (result.status == 3) {
      EXPECT_THAT(result.err, HasSubstr("error: "));
    }
  }
}

TEST_F(OddEnvironment, MoreProcessesThanTheMemoryHolds) {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word && word != "MemAvailable:") continue;
  std::uint64_t kibibytes = 0;
  file >> kibibytes;
  const std::uint64_t count = kibibytes / (32 << 10) + 256;
  if (count > 4096) GTEST_SKIP() << "this machine has room for more than 4096 processes";
  const ProcessResult result =
      unishard({"verify", in_, "--deep", "--procs", std::to_string(count)});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("are available"));
}

TEST_F(OddEnvironment, NumbersThatAreNone) {
  const std::vector<std::vector<std::string>> flags = {
      {"inspect", "--threads", "nan"},
      {"inspect", "--threads", "99999999999999999999"},
      {"inspect", "--threads", "-1"},
      {"inspect", "--threads", "0"},
      {"inspect", "--memory-limit", "nan"},
      {"inspect", "--memory-limit", "inf"},
      {"inspect", "--memory-limit", "-5GB"},
      {"inspect", "--memory-limit", "1e400"},
      {"inspect", "--memory-limit", "99999999999999999999TB"},
      {"verify", "--procs", "nan"},
      {"verify", "--procs", "18446744073709551617"},
      {"prune", "--keep-last", "nan"},
      {"prune", "--keep-last", "-1"},
      {"prune", "--keep-last", "0"},
      {"prune", "--keep-last", "99999999999999999999"}};
  for (const auto& flag : flags) {
    const ProcessResult result = unishard({flag[0], in_, flag[1], flag[2]});
    EXPECT_EQ(result.status, 2) << flag[1] << " " << flag[2] << result.err;
    EXPECT_THAT(result.err, HasSubstr("error: "));
  }
  const std::vector<std::vector<std::string>> writing = {
      {"zero_to_fp32", "--max_shard_size", "nan"},
      {"zero_to_fp32", "--max_shard_size", "1e30TB"},
      {"reshard", "--world-size", "nan"},
      {"reshard", "--world-size", "0"},
      {"reshard", "--world-size", "4294967299"},
      {"reshard", "--world-size", "18446744073709551619"},
      {"reshard", "--world-size", "-1"},
      {"reshard", "--stage", "nan"}};
  for (const auto& flag : writing) {
    const ProcessResult result = unishard({flag[0], in_, out_, flag[1], flag[2]});
    EXPECT_EQ(result.status, 2) << flag[1] << " " << flag[2] << result.err;
    EXPECT_FALSE(fs::exists(out_));
  }
  for (const char* value : {"nan", "-1"}) {
    EXPECT_EQ(unishard({"diff", in_, in_, "--tolerance", value}).status, 2) << value;
  }
}

TEST_F(OddEnvironment, RulesThatAreNoFile) {
  for (const std::string& rules : {"@" + in_, std::string("@/nowhere"), std::string("@")}) {
    const ProcessResult result =
        unishard({"convert", in_, out_, "--to", "native", "--rename", rules});
    EXPECT_EQ(result.status, 2) << rules << result.err;
    EXPECT_THAT(result.err, HasSubstr("--rename: cannot read"));
    EXPECT_FALSE(fs::exists(out_));
  }
  const Path rules = temp_.path() / "rules";
  write_file(rules, "# none\n\nh=block\n");
  EXPECT_EQ(
      unishard({"convert", in_, out_, "--to", "native", "--rename", "@" + rules.string()}).status,
      0);
  EXPECT_THAT(unishard({"inspect", out_}).out, HasSubstr("block"));
}

/// HDF5 opens files itself, and says nothing of why it cannot.
TEST_F(OddEnvironment, AnHdf5FileThatNoDescriptorIsLeftForIsNoDamage) {
  for (int files = 5; files < 13; ++files) {
    const fs::path file = temp_.path() / "few.h5";
    const ProcessResult result = shell(fmt::format("ulimit -n {}; exec \"$@\"", files),
                                       {"convert", in_, file, "--to", "hdf5", "--weights-only"});
    EXPECT_TRUE(result.status == 0 || result.status == 3) << files << result.err;
    fs::remove(file);
  }
}

TEST_F(OddEnvironment, MoreShardsThanOpenFiles) {
  const std::string many = temp_.path() / "many";
  write_example(many, {.world_size = 150, .stage = 3});
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"inspect", many},
           {"verify", many, "--deep"},
           {"diff", many, many},
           {"zero_to_fp32", many, model_},
           {"reshard", many, out_, "-w", "140"},
           {"convert", many, temp_.path() / "n", "--to", "deepspeed"}}) {
    const ProcessResult raised = shell("ulimit -Sn 100; exec \"$@\"", words);
    EXPECT_EQ(raised.status, 0) << words[0] << raised.err;
    fs::remove(model_);
    fs::remove_all(out_);
    const ProcessResult hard = shell("ulimit -n 100; exec \"$@\"", words);
    EXPECT_TRUE(hard.status == 3 || (words[0] == "verify" && hard.status != 0)) << words[0];
    EXPECT_THAT(hard.err + hard.out, HasSubstr("ulimit -n"));
    EXPECT_FALSE(fs::exists(model_));
    EXPECT_FALSE(fs::exists(out_) && !fs::is_empty(out_));
    fs::remove_all(out_);
  }
}

}  // namespace
}  // namespace unishard::test
