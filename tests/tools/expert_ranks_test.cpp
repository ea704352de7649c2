// DeepSpeed's folders of mixtures of experts, written for other numbers of ranks and expert ranks.
#include "unishard/format/storage.hpp"

#include "expect.hpp"
#include "fixtures.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace unishard::test {
namespace {

using testing::HasSubstr;

std::string parallel_run(const std::string& name) {
  return (fixtures() / "parallel" / name / "checkpoint").string();
}

struct Shape {
  std::string fixture;
  int ranks = 1, stage = 1, expert_ranks = 1;
};

TEST(ExpertRanks, EveryNumberHasTheSameState) {
  SKIP_WITHOUT_FIXTURES();
  const std::string two = "moe_ep2_stage2_fp32_two_layers", four = "moe_ep2dp4_stage2_bf16";
  const std::string first = "moe_ep2dp4_stage1_fp32_data_first";
  const std::string groups = "moe_ep4_and_ep2_stage2_fp32_groups";
  const std::vector<Shape> shapes = {{two, 1, 2, 1},
                                     {two, 4, 1, 2},
                                     {two, 6, 0, 2},
                                     {four, 4, 2, 4},
                                     {four, 2, 1, 1},
                                     {four, 8, 0, 4},
                                     {first, 4, 2, 4},
                                     {first, 2, 1, 2},
                                     {first, 4, 0, 2},
                                     {groups, 2, 2, 2},
                                     {groups, 4, 1, 1},
                                     {"moe_ep2_stage0_fp32", 2, 2, 2},
                                     {"moe_ep2_stage0_bf16", 4, 1, 4},
                                     {"moe_ep1_stage2_fp32", 3, 1, 3}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.fixture + " on " + std::to_string(shape.ranks) + " ranks, stage " +
                 std::to_string(shape.stage) + ", ep_size " + std::to_string(shape.expert_ranks));
    const TempDir temp;
    const std::string input = parallel_run(shape.fixture), output = (temp.path() / "out").string();
    const auto result =
        unishard({"reshard", input, output, "-w", std::to_string(shape.ranks), "-s",
                  std::to_string(shape.stage), "--ep-size", std::to_string(shape.expert_ranks)});
    ASSERT_EQ(result.status, 0) << result.out << result.err;
    const auto same = unishard({"diff", input, output});
    EXPECT_EQ(same.status, 0) << same.out << same.err;
    EXPECT_EQ(unishard({"verify", output, "--deep"}).status, 0);
  }
}

TEST(ExpertRanks, StayThoseOfTheInput) {
  SKIP_WITHOUT_FIXTURES();
  const TempDir temp;
  const std::string input = parallel_run("moe_ep2_stage2_fp32_two_layers");
  const std::string native = (temp.path() / "native").string();
  const Path output = temp.path() / "out";
  ASSERT_EQ(unishard({"convert", input, native, "--to", "native"}).status, 0);
  ASSERT_EQ(unishard({"convert", native, output.string(), "--to", "deepspeed"}).status, 0);
  std::set<std::string> files, expected;
  for (const auto& entry : std::filesystem::directory_iterator(output / "global_step3"))
    files.insert(entry.path().filename().string());
  for (const auto& entry : std::filesystem::directory_iterator(Path(input) / "global_step3"))
    expected.insert(entry.path().filename().string());
  EXPECT_EQ(files, expected);
}

TEST(ExpertRanks, ThatDoNotFitAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  const TempDir temp;
  const std::string input = parallel_run("moe_ep2_stage2_fp32_two_layers");
  const std::string output = (temp.path() / "out").string();
  const auto refused = [&](std::vector<std::string> options, const std::string& words) {
    std::vector<std::string> command = {"convert", input, output, "--to", "deepspeed"};
    command.insert(command.end(), options.begin(), options.end());
    const auto result = unishard(command);
    EXPECT_EQ(result.status, 2) << result.out << result.err;
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_FALSE(std::filesystem::exists(output));
  };
  refused({"-w", "3"}, "2 expert ranks do not divide the 3 ranks of the result");
  refused({"-w", "4", "--ep-size", "4"}, "4 expert ranks do not divide the 2 experts of moes.1.");
  refused({"--ep-size", "0"}, "--ep-size 0");
  const auto other =
      unishard({"reshard", input, output, "-w", "2", "--ep-size", "2", "--to", "dcp"});
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.err, HasSubstr("--ep-size is for DeepSpeed's own folders"));
}

TEST(ExpertRanks, NeedEveryExpert) {
  SKIP_WITHOUT_FIXTURES();
  const TempDir temp;
  const auto result = unishard({"convert", parallel_run("moe_ep2_stage2_fp32_two_layers"),
                                (temp.path() / "out").string(), "--to", "deepspeed", "--only",
                                "*deepspeed_experts.[03].*"});
  EXPECT_NE(result.status, 0);
  EXPECT_THAT(result.err, HasSubstr("deepspeed_experts.0 to 3 some are missing"));
}

TEST(ExpertRanks, NeedGroupsOfExperts) {
  SKIP_WITHOUT_FIXTURES();
  const TempDir temp;
  const auto result =
      unishard({"convert", parallel_run("pp2_stage1_fp32"), (temp.path() / "out").string(), "--to",
                "deepspeed", "--ep-size", "2"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("no parameter group of the checkpoint holds experts"));
}

}  // namespace
}  // namespace unishard::test
