#include "unishard/trainer/rank_environment.hpp"

#include "unishard/format/error.hpp"

#include "expect.hpp"

#include <gtest/gtest.h>

#include <map>

namespace unishard::trainer {
namespace {

using Variables = std::map<std::string, std::string>;

RankEnvironment read(const Variables& variables) {
  return read_rank_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

void expect_refused(const Variables& variables, const char* says) {
  EXPECT_THAT(test::error_of([&] { read(variables); }),
              test::Fails(ErrorCode::InvalidArgument, says));
}

TEST(RankEnvironment, NothingSetIsAWorldOfOne) {
  const auto found = read({});
  EXPECT_EQ(found.world_size, 1u);
  EXPECT_EQ(found.launcher, "none");
}

TEST(RankEnvironment, APortThatNoRankCanFindIsRefused) {
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "0"}},
                 "MASTER_PORT is 0");
}

TEST(RankEnvironment, Torchrun) {
  const auto found = read({{"RANK", "3"},
                           {"WORLD_SIZE", "4"},
                           {"LOCAL_RANK", "1"},
                           {"MASTER_ADDR", "n0"},
                           {"MASTER_PORT", "12345"},
                           {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                           {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(found.rank, 3u);
  EXPECT_EQ(found.world_size, 4u);
  EXPECT_EQ(found.local_rank, 1u);
  EXPECT_EQ(found.master_addr, "n0");
  EXPECT_EQ(found.master_port, 12345);
  EXPECT_TRUE(found.store_is_hosted);
  EXPECT_EQ(found.group, "unishard/2");
}

TEST(RankEnvironment, TheLauncherNamesTheNode) {
  const Variables usual{{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "n0"}};
  const auto node = [&](const Variables& more) {
    Variables all = usual;
    all.insert(more.begin(), more.end());
    return read(all).node;
  };
  EXPECT_EQ(node({{"GROUP_RANK", "3"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}), "3");
  EXPECT_EQ(node({{"CROSS_RANK", "2"}}), "2");
  EXPECT_EQ(node({{"SLURM_NODEID", "1"}}), "1");
  EXPECT_EQ(node({{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}}), "of rank 4");
  EXPECT_EQ(node({{"LOCAL_RANK", "5"}, {"LOCAL_WORLD_SIZE", "8"}}), "") << "one host";
  EXPECT_EQ(node({}), "");
}

TEST(RankEnvironment, OpenMpi) {
  const auto found =
      read({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}});
  EXPECT_EQ(found.launcher, "openmpi");
  EXPECT_EQ(found.rank, 1u);
  EXPECT_EQ(found.master_addr, "h");
  EXPECT_EQ(found.master_port, 29500);
  EXPECT_FALSE(found.store_is_hosted);
}

TEST(RankEnvironment, OpenMpiOnOneHostNeedsNoMaster) {
  const auto found = [](const std::string& local_size) {
    return Variables{{"OMPI_COMM_WORLD_RANK", "1"},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", local_size}};
  };
  EXPECT_EQ(read(found("2")).master_addr, "127.0.0.1");
  expect_refused(found("1"), "MASTER_ADDR is not set (launcher openmpi)");
}

TEST(RankEnvironment, JobsOnOneHostDoNotMeet) {
  const auto job = [](const std::string& number) {
    return read({{"SLURM_PROCID", "0"},
                 {"SLURM_STEP_NUM_TASKS", "2"},
                 {"SLURM_STEP_NUM_NODES", "1"},
                 {"SLURM_JOB_ID", number},
                 {"SLURM_STEP_ID", "0"}});
  };
  EXPECT_EQ(job("17").group, "unishard/17.0/0");
  EXPECT_EQ(job("17").master_addr, "127.0.0.1");
  EXPECT_EQ(job("17").master_port, job("17").master_port);
  EXPECT_NE(job("17").master_port, job("18").master_port);
  for (int number = 0; number < 1000; ++number) {
    EXPECT_GE(job(std::to_string(number)).master_port, 15000);
    EXPECT_LT(job(std::to_string(number)).master_port, 25000);
  }
}

TEST(RankEnvironment, SrunTakesTheFirstHostOfTheNodeList) {
  const Variables base{
      {"SLURM_PROCID", "5"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_LOCALID", "1"}};
  const auto with_nodes = [&](const std::string& list) {
    Variables all = base;
    all["SLURM_NODELIST"] = list;
    return read(all).master_addr;
  };
  EXPECT_EQ(with_nodes("node[003-008,011]"), "node003");
  EXPECT_EQ(with_nodes("a1,b[2-3]"), "a1");
  EXPECT_EQ(with_nodes("gpu7"), "gpu7");
  Variables step = base;
  step["SLURM_NODELIST"] = "node[1-8]";
  step["SLURM_STEP_NODELIST"] = "node[5-8]";
  EXPECT_EQ(read(step).master_addr, "node5");
  expect_refused(base, "MASTER_ADDR");
}

TEST(RankEnvironment, ABatchShellOfSlurmIsNoLauncher) {
  EXPECT_EQ(read({{"SLURM_NTASKS", "8"}}).world_size, 1u);
  EXPECT_EQ(read({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}).world_size, 1u);
}

TEST(RankEnvironment, SaysWhatIsMissingOrWrong) {
  expect_refused({{"RANK", "0"}}, "WORLD_SIZE is not set");
  expect_refused({{"WORLD_SIZE", "2"}}, "RANK is not set");
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR is not set");
  expect_refused({{"RANK", "x1"}, {"WORLD_SIZE", "2"}}, "RANK is \"x1\"");
  expect_refused({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK is 2, but WORLD_SIZE is 2");
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "70000"}}, "MASTER_PORT");
}

}  // namespace
}  // namespace unishard::trainer
