// One file of several: which verbs take it, and what they say of it.
#include "expect.hpp"
#include "fixtures.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <filesystem>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class PartCommand : public testing::Test {
 protected:
  void SetUp() override {
    write_example(path("run"));
    ASSERT_EQ(unishard({"zero_to_fp32", path("run"), path("whole.safetensors")}).status, 0);
    fs::create_directory(path("shards"));
    fs::copy_file(path("whole.safetensors"), part());
  }
  std::string path(const std::string& name) const { return temp_.path() / name; }
  std::string part() const { return path("shards/model-00002-of-00003.safetensors"); }

 private:
  const TempDir temp_;
};

TEST_F(PartCommand, AFileOfSeveralIsRefusedUnlessItAloneIsMeant) {
  const std::vector<std::vector<std::string>> commands = {
      {"zero_to_fp32", part(), path("out.safetensors")},
      {"convert", part(), path("out.safetensors")},
      {"convert", part(), path("out"), "--to", "dcp", "-w", "2"},
      {"reshard", part(), path("out"), "--to", "dcp", "-w", "2"}};
  for (std::vector<std::string> command : commands) {
    const ProcessResult refused = unishard(command);
    EXPECT_EQ(refused.status, 6) << refused.err;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("part 2 of 3"), HasSubstr("--part")));
    EXPECT_FALSE(fs::exists(command[2])) << command[2];
    command.emplace_back("--part");
    const ProcessResult taken = unishard(command);
    EXPECT_EQ(taken.status, 0) << taken.err;
    fs::remove_all(command[2]);
  }
}

TEST_F(PartCommand, InspectAndVerifySayWhatItIsAPartOf) {
  EXPECT_THAT(unishard({"inspect", part()}).out, HasSubstr("part 2 of 3"));
  EXPECT_THAT(unishard({"inspect", path("whole.safetensors")}).out, Not(HasSubstr("part")));
  const Json report = report_of({"verify", part(), "--deep"});
  EXPECT_EQ(report.at("ok"), true);
  EXPECT_THAT(report.at("notes").dump(), HasSubstr("part 2 of 3"));
}

TEST_F(PartCommand, AFolderThatLacksFilesIsIncompleteForEveryVerb) {
  EXPECT_THAT(report_of({"verify", path("shards")}, 1).at("findings").dump(),
              HasSubstr("2 of 3 files"));
  const ProcessResult refused = unishard({"zero_to_fp32", path("shards"), path("out.safetensors")});
  EXPECT_EQ(refused.status, 4);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("2 of 3 files"), Not(HasSubstr("name one of"))));
}

TEST_F(PartCommand, ARankIsForFilesOfRanks) {
  const ProcessResult refused = unishard(
      {"zero_to_fp32", path("whole.safetensors"), path("out.safetensors"), "--from-rank", "1"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("--from-rank"));
}

TEST_F(PartCommand, EveryVerbTakesTheRankWhoseCopiesCount) {
  const std::vector<std::vector<std::string>> commands = {
      {"verify", path("whole.safetensors"), "--from-rank", "1"},
      {"inspect", path("whole.safetensors"), "--from-rank", "1"},
      {"diff", path("whole.safetensors"), path("whole.safetensors"), "--from-rank-b", "1"}};
  for (const auto& command : commands)
    EXPECT_THAT(unishard(command).err, HasSubstr("holds no files that ranks wrote")) << command[0];
}

/// One file of a run of DeepSpeed, and words of why it is no model.
struct RunFile {
  const char *run, *file, *words;
};

TEST_F(PartCommand, AFileOfADeepSpeedRunIsAPartOfIt) {
  SKIP_WITHOUT_FIXTURES();
  const std::vector<RunFile> files = {
      {"deepspeed/stage2_w1", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "on its rank"},
      {"deepspeed/stage2_bf16", "mp_rank_00_model_states.pt", "float32 masters"},
      {"deepspeed/stage0_bf16", "mp_rank_00_model_states.pt", "float32 masters"},
      {"deepspeed/universal_stage1", "zero/blocks.0.norm2.bias/exp_avg.pt", "\"exp_avg\""},
      {"deepspeed/universal_stage1", "zero/blocks.0.norm2.bias/step.pt", "\"step\""},
      {"deepspeed/universal_stage1", "zero/blocks.0.norm2.bias/fp32.pt", "the master"},
      {"deepspeed/universal_stage3_sub_groups", "zero/optimizer_state.pt", "on its rank"},
      {"parallel/moe_ep2_stage0_bf16", "expp_rank_0_mp_rank_00_optim_states.pt", "on its rank"},
      {"parallel/moe_ep2_stage0_fp32", "expp_rank_0_mp_rank_00_optim_states.pt", "on its rank"},
      {"parallel/moe_ep2_stage0_bf16", "mp_rank_00_model_states.pt", "experts are in other files"},
      {"parallel/moe_ep1_stage2_fp32", "mp_rank_00_model_states.pt", "experts are in other files"}};
  for (const RunFile& c : files) {
    const fs::path file = fixtures() / c.run / "checkpoint/global_step3" / c.file;
    const ProcessResult refused = unishard({"zero_to_fp32", file, path("out.safetensors")});
    EXPECT_EQ(refused.status, 6) << file << refused.err;
    EXPECT_THAT(refused.err, AllOf(HasSubstr(c.words), HasSubstr("name the folder")));
    EXPECT_EQ(unishard({"convert", file, path("out.safetensors"), "--weights-only"}).status, 6);
    EXPECT_THAT(report_of({"verify", file}).at("notes").dump(), HasSubstr("no whole model"));
  }
  const fs::path whole =
      fixtures() / "deepspeed/stage0_fp32/checkpoint/global_step3/mp_rank_00_model_states.pt";
  EXPECT_EQ(unishard({"zero_to_fp32", whole, path("stage0.safetensors")}).status, 0);
}

TEST_F(PartCommand, FlatGroupsOfAnOptimizerAreNoWeights) {
  SKIP_WITHOUT_FIXTURES();
  const fs::path file = fixtures() /
                        "deepspeed/stage2_w1/checkpoint/global_step3/"
                        "zero_pp_rank_0_mp_rank_00_optim_states.pt";
  const ProcessResult result = unishard({"zero_to_fp32", file, path("out.safetensors"), "--part"});
  EXPECT_EQ(result.status, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("no parameter"));
  EXPECT_EQ(unishard({"convert", file, path("out.pt"), "--part"}).status, 0);
}

TEST_F(PartCommand, RulesOfTheUserPutTensorParallelPartsTogether) {
  if (!fs::is_directory(fixtures() / "public")) GTEST_SKIP() << "no fixtures (UNISHARD_FIXTURES)";
  const std::string parts = fixtures() / "public" / "tensor_parallel_parts" / "input" / "meta";
  write_file(path("rules.json"), R"({"tp_replicated_parameter_patterns": ["norm\\.weight"]})");
  for (const std::string verb : {"inspect", "verify", "zero_to_fp32", "convert", "reshard"}) {
    std::vector<std::string> command = {verb, parts};
    if (verb == "zero_to_fp32" || verb == "convert") command.push_back(path(verb + ".safetensors"));
    if (verb == "reshard")
      command.insert(command.end(), {path("resharded"), "-w", "2", "--to", "native"});
    EXPECT_EQ(unishard(command).status, 6) << verb;
    command.insert(command.end(), {"--merge-rules", path("rules.json")});
    const ProcessResult joined = unishard(command);
    EXPECT_EQ(joined.status, 0) << joined.err;
    command.back() = path("none.json");
    const ProcessResult refused = unishard(command);
    EXPECT_EQ(refused.status, 2) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("none.json"));
  }
  EXPECT_EQ(
      unishard({"diff", path("convert.safetensors"), path("zero_to_fp32.safetensors")}).status, 0);
}

TEST_F(PartCommand, AModelOfTheUserTellsWhatFlatParametersHold) {
  SKIP_WITHOUT_FIXTURES();
  const fs::path at = fixtures() / "torch/fsdp1_local_orig_w3";
  const std::string like = path("like.safetensors");
  ASSERT_EQ(unishard({"convert", at / "expected.safetensors", like, "--only", "*|weights",
                      "--rename", "\\|weights$="})
                .status,
            0);
  for (const std::string verb : {"inspect", "verify", "zero_to_fp32", "convert", "reshard"}) {
    std::vector<std::string> command = {verb, at / "checkpoint"};
    if (verb == "zero_to_fp32" || verb == "convert") command.push_back(path(verb + ".safetensors"));
    if (verb == "reshard")
      command.insert(command.end(), {path("resharded"), "-w", "2", "--to", "native"});
    const ProcessResult unknown = unishard(command);
    EXPECT_EQ(unknown.status, 6) << verb;
    EXPECT_THAT(unknown.err, HasSubstr("--like"));
    command.insert(command.end(), {"--like", like});
    const ProcessResult known = unishard(command);
    EXPECT_EQ(known.status, 0) << verb << known.err;
    command.back() = path("none.pth");
    EXPECT_THAT(unishard(command).err, HasSubstr("none.pth")) << verb;
    command[1] = path("run");
    command.back() = like;
    const ProcessResult refused = unishard(command);
    EXPECT_EQ(refused.status, 2) << verb;
    EXPECT_THAT(refused.err, HasSubstr("leave"));
  }
}

/// verl saves each model of a step into a folder of its own.
TEST_F(PartCommand, ModelsOfTheStepsOfVerlAreListed) {
  for (const char* model :
       {"global_step_9/actor", "global_step_10/actor", "global_step_10/critic"}) {
    fs::create_directories(path("verl/") + model);
    const std::string file = path("verl/") + model + "/model_world_size_1_rank_0.pt";
    ASSERT_EQ(unishard({"zero_to_fp32", path("run"), file}).status, 0);
  }
  write_file(path("verl/latest_checkpointed_iteration.txt"), "10");
  std::vector<std::string> tags;
  const Json listed = report_of({"inspect", path("verl"), "--tags"});
  for (const Json& tag : listed.at("tags")) tags.push_back(tag.at("tag"));
  EXPECT_EQ(tags, (std::vector<std::string>{"global_step_9/actor", "global_step_10/actor",
                                            "global_step_10/critic"}));
  EXPECT_EQ(listed.at("tags")[1].at("step"), 10);
  const ProcessResult refused = unishard({"diff", path("verl"), path("verl/global_step_9")});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("2 models"), HasSubstr("global_step_10/actor"),
                                 HasSubstr("global_step_10/critic")));
}

TEST_F(PartCommand, ZeroToFp32SaysThatThereIsNoIndex) {
  fs::create_directory(path("two"));
  fs::copy_file(path("whole.safetensors"), path("two/model-00001-of-00002.safetensors"));
  ASSERT_EQ(unishard({"zero_to_fp32", path("run"), path("two/model-00002-of-00002.safetensors"),
                      "--rename", "^=second."})
                .status,
            0);
  const ProcessResult taken = unishard({"zero_to_fp32", path("two"), path("out.safetensors")});
  EXPECT_EQ(taken.status, 0) << taken.err;
  EXPECT_THAT(taken.err, HasSubstr("there is no index: all 2 files"));
}

}  // namespace
}  // namespace unishard::test
