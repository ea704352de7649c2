// DeepSpeed's folders for other numbers of pipeline stages and tensor-parallel ranks. Whether
// DeepSpeed itself takes them: tests/interop/peers/parallel_resumes.py.
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
using Words = std::vector<std::string>;

Path saved_parallel_run(const std::string& name) {
  return fixtures() / "parallel" / name / "checkpoint";
}

Words words_of(const std::string& text) {
  Words words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

Words command_line(const std::string& verb, const Path& in, const Path& out,
                   const std::string& options, const Words& more = {}) {
  Words words = {verb, in.string(), out.string()};
  for (const Words& part : {words_of(options), more})
    words.insert(words.end(), part.begin(), part.end());
  return words;
}

std::set<std::string> parallel_files_in(const Path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

struct Written {
  std::string fixture, options;
};

void expect_same_state(const std::vector<Written>& cases) {
  for (const auto& [fixture, options] : cases) {
    SCOPED_TRACE(fixture + " " + options);
    const TempDir temp;
    const Path input = saved_parallel_run(fixture), output = temp.path() / "out";
    const auto result = unishard(command_line("reshard", input, output, options));
    ASSERT_EQ(result.status, 0) << result.out << result.err;
    const auto same = unishard({"diff", input.string(), output.string()});
    EXPECT_EQ(same.status, 0) << same.out << same.err;
    const auto sound = unishard({"verify", output.string(), "--deep"});
    EXPECT_EQ(sound.status, 0) << sound.out << sound.err;
  }
}

TEST(TensorRanks, EveryNumberHasTheSameState) {
  SKIP_WITHOUT_FIXTURES();
  const std::string padded = " --vocab-multiple 8";
  expect_same_state({{"mg_tp2_stage1_fp32", "-w 2 -s 0 --tensor 2" + padded},
                     {"mg_tp2_stage1_fp32", "-w 4 --tensor 4" + padded},
                     {"mg_tp2_stage1_fp32", "-w 6 -s 2 --tensor 2"},
                     {"mg_tp2_stage1_fp32", "-w 4 -s 3 --tensor 2" + padded},
                     {"mg_tp2dp2_stage2_bf16_tied", "-w 4 -s 1 --tensor 4" + padded},
                     {"mg_tp2dp2_stage2_bf16_tied", "-w 2 -s 0 --tensor 2" + padded},
                     {"mg_tp2dp2_stage3_bf16", "-w 8 --tensor 4" + padded},
                     {"mg_tp2dp2_stage3_bf16", "-w 6 -s 2 --tensor 2 --memory-limit 64MiB"},
                     {"mg_pp2tp2_stage1_bf16_tied", "-w 4 --tensor 4" + padded}});
}

/// Writes the folders of runs again, for the same ranks, and compares the names of the files.
void expect_files_of_deepspeed(const std::vector<Written>& all) {
  for (const auto& [fixture, options] : all) {
    SCOPED_TRACE(fixture);
    const TempDir temp;
    const Path input = saved_parallel_run(fixture), output = temp.path() / "out";
    const auto result =
        unishard(command_line("convert", input, output, "--to deepspeed " + options));
    ASSERT_EQ(result.status, 0) << result.out << result.err;
    EXPECT_EQ(parallel_files_in(output / "global_step3"),
              parallel_files_in(input / "global_step3"));
  }
}

void expect_refused(const std::string& fixture, const std::string& options,
                    const std::string& words) {
  SCOPED_TRACE(fixture + " " + options);
  const TempDir temp;
  const Path output = temp.path() / "out";
  const auto result =
      unishard(command_line("convert", saved_parallel_run(fixture), output, options));
  EXPECT_NE(result.status, 0) << result.out;
  EXPECT_THAT(result.err, HasSubstr(words));
  EXPECT_FALSE(std::filesystem::exists(output));
}

TEST(TensorRanks, HaveTheFilesOfDeepSpeed) {
  SKIP_WITHOUT_FIXTURES();
  const std::string options = "--tensor 2 --vocab-multiple 8";
  expect_files_of_deepspeed({{"mg_tp2_stage1_fp32", options},
                             {"mg_tp2dp2_stage2_bf16_tied", options},
                             {"mg_tp2dp2_stage3_bf16", options}});
}

/// AutoTP's files have lists of patterns beside the map of their own ranks.
TEST(TensorRanks, TakeTheListsOfAutoTPOrTheRulesOfTheUser) {
  SKIP_WITHOUT_FIXTURES();
  const TempDir temp;
  const Path rules = temp.path() / "rules.json", output = temp.path() / "out";
  write_file(rules, R"({"cuts": {
    "tp_replicated_parameter_patterns": [".*norm.*", ".*embed_tokens.*"],
    "parameter_with_row_parallelism_patterns": [".*o_proj.weight", ".*down_proj.weight"]}})");
  const Path input = saved_parallel_run("autotp2_stage1_bf16");
  const Path by_lists = temp.path() / "lists";
  const auto listed = unishard(command_line("reshard", input, by_lists, "-w 2 --tensor 2"));
  ASSERT_EQ(listed.status, 0) << listed.out << listed.err;
  EXPECT_EQ(unishard({"diff", input.string(), by_lists.string()}).status, 0);
  const auto result = unishard(
      command_line("reshard", input, output, "-w 2 --tensor 2 --merge-rules", {rules.string()}));
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  const auto same = unishard({"diff", input.string(), output.string()});
  EXPECT_EQ(same.status, 0) << same.out << same.err;
}

TEST(TensorRanks, ThatDoNotFitAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  const std::string to = "--to deepspeed ", padded = " --vocab-multiple 8";
  expect_refused("mg_tp2_stage1_fp32", to + "-w 3 --tensor 2" + padded,
                 "do not divide the 3 ranks");
  expect_refused("mg_tp2_stage1_fp32", to + "-w 3 --tensor 3" + padded,
                 "3 ranks cannot share equally");
  expect_refused("pp2_stage1_fp32", to + "-w 2 --tensor 2", "does not say how");
  expect_refused("mg_tp2_stage1_fp32_no_info", to + "-w 2 --tensor 2", "--merge-rules");
  expect_refused("moe_ep2_stage2_fp32_two_layers", to + "-w 2 --tensor 2", "experts");
  expect_refused("mg_tp2_stage1_fp32", "--to dcp --tensor 2",
                 "--tensor is for DeepSpeed's own folders");
  expect_refused("mg_tp2_stage1_fp32", "--to deepspeed" + padded,
                 "--vocab-multiple is for tensor-parallel ranks");
}

TEST(PipelineStages, EveryNumberHasTheSameState) {
  SKIP_WITHOUT_FIXTURES();
  const std::string tied = " --tied-layers embed=0,5";
  expect_same_state({{"pp2_stage1_fp32", "-w 1 --pipeline 1"},
                     {"pp2_stage1_fp32", "-w 3 --pipeline 3"},
                     {"pp2_stage1_fp32", "-w 8 --pipeline 4"},
                     {"pp2_stage1_fp32", "-w 3 -s 0 --pipeline 3"},
                     {"pp2_stage1_fp32", "-w 2 --pipeline-parts 0,3,7"},
                     {"pp2_stage0_fp32", "-w 4 -s 1 --pipeline 4"},
                     {"pp2dp2_stage1_bf16", "-w 6 --pipeline 3"},
                     {"pp2_stage1_fp32_groups_frozen", "-w 3 --pipeline-parts 0,3,5,7"},
                     {"pp2_stage1_bf16_tied", "-w 2 --pipeline 2" + tied},
                     {"pp2_stage1_bf16_tied", "-w 6 --pipeline-parts 0,2,4,6" + tied},
                     {"mg_pp2tp2_stage1_bf16_tied",
                      "-w 8 --pipeline 2 --tensor 4 --vocab-multiple 8 --tied-layers embed=0,4"},
                     {"mg_pp2tp2_stage1_bf16_tied", "-w 2 --pipeline 2 --tied-layers embed=0,4"}});
}

TEST(PipelineStages, HaveTheFilesOfDeepSpeed) {
  SKIP_WITHOUT_FIXTURES();
  expect_files_of_deepspeed(
      {{"pp2dp2_stage1_bf16", "--pipeline 2"},
       {"pp2_stage1_bf16_tied", "--pipeline-parts 0,3,5 --tied-layers embed=0"},
       {"mg_pp2tp2_stage1_bf16_tied",
        "--pipeline-parts 0,2,4 --tensor 2 --vocab-multiple 8 --tied-layers embed=0"}});
}

TEST(PipelineStages, ThatDoNotFitAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  const auto refused = [](const std::string& fixture, const std::string& options,
                          const std::string& words) {
    expect_refused(fixture, "--to deepspeed " + options, words);
  };
  const std::string plain = "pp2_stage1_fp32", tied = "pp2_stage1_bf16_tied";
  refused(plain, "-w 3 --pipeline 2", "do not divide the 3 ranks");
  refused(plain, "-w 2 -s 2 --pipeline 2", "which DeepSpeed does not have");
  refused(plain, "-w 9 --pipeline 9", "9 stages for the layers 0 to 6");
  refused(plain, "-w 2 --pipeline-parts 0,3,6", "tell of 6 layers, and the checkpoint has layer 6");
  refused(plain, "-w 2 --pipeline-parts 0,4,3", "are no first layers");
  refused(plain, "-w 2 --pipeline-parts 0,1,2,7 --pipeline 2", "--pipeline 2 and 4 numbers");
  refused(plain, "-w 3 --pipeline-parts 0,1,2,7", "stage 1 would have no trained parameter");
  refused("pp2_stage1_fp32_groups_frozen", "-w 2 --pipeline 2", "frozen parameters");
  refused(plain, "-w 2 --pipeline 2 --tied-layers embed=0,6", "no tied module of this key");
  refused(tied, "-w 2 --pipeline 2", "--tied-layers embed=0,5");
  refused(tied, "-w 2 --pipeline 2 --tied-layers embed", "pass the key of the module");
  refused(tied, "-w 2 --pipeline 2 --tied-layers embed=0,2", "layer 2 has tensors of its own");
  refused(tied, "-w 2 -s 0 --pipeline 2 --tied-layers embed=0,5", "16-bit weights at stage 0");
  refused("pp2dp2_stage0_fp32_tied", "-w 2 -s 0 --pipeline 2 --tied-layers embed=0,6",
          "stores states without names");
  refused("mg_tp2_stage1_fp32", "-w 2 --pipeline 2", "it is no tensor of a pipeline");
}

}  // namespace
}  // namespace unishard::test
