// Rules of the user's: saved by one conversion, given to another.
#include "expect.hpp"
#include "fixtures.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>
#include <vector>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class RulesCommand : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return temp_.path() / name; }
  static std::string parallel(const std::string& name) {
    return fixtures() / "parallel" / name / "checkpoint";
  }
  Json read(const std::string& name) const {
    return parse_json(read_file(temp_.path() / name), name);
  }
  static void expect_equal(const std::string& a, const std::string& b) {
    const ProcessResult result = unishard({"diff", a, b});
    EXPECT_EQ(result.status, 0) << result.out << result.err;
  }

 private:
  const TempDir temp_;
};

TEST_F(RulesCommand, ThatAFolderTellsPutAnotherTogether) {
  SKIP_WITHOUT_FIXTURES();
  const std::string telling = parallel("mg_tp2_stage1_fp32"),
                    silent = parallel("mg_tp2_stage1_fp32_no_info");
  const ProcessResult saved = unishard({"zero_to_fp32", telling, path("a.safetensors"), "--rename",
                                        "^layers=blocks", "--save-rules", path("rules.json")});
  ASSERT_EQ(saved.status, 0) << saved.err;
  const Json rules = read("rules.json");
  EXPECT_EQ(rules["renames"], (Json{{{"from", "^layers"}, {"to", "blocks"}}}));
  EXPECT_EQ(rules["cuts"]["original_vocab_size"], 29);
  EXPECT_EQ(unishard({"zero_to_fp32", silent, path("b.safetensors")}).status, 6);
  for (const std::vector<std::string>& given :
       {std::vector<std::string>{"--rules", path("rules.json")},
        {"--merge-rules", path("rules.json"), "--rename", "@" + path("rules.json")}}) {
    std::vector<std::string> command = {"zero_to_fp32", silent, path("b.safetensors")};
    command.insert(command.end(), given.begin(), given.end());
    const ProcessResult joined = unishard(command);
    EXPECT_EQ(joined.status, 0) << joined.err;
    expect_equal(path("a.safetensors"), path("b.safetensors"));
    fs::remove(path("b.safetensors"));
  }
  // What the user gave is what is saved.
  ASSERT_EQ(unishard({"convert", silent, path("run"), "--to", "native", "--rules",
                      path("rules.json"), "--save-rules", path("again.json")})
                .status,
            0);
  EXPECT_EQ(read("again.json"), rules);
}

TEST_F(RulesCommand, OfMetaKeepTheLayoutThatOrdersRows) {
  const std::string meta = std::string(UNISHARD_TEST_DATA) + "/golden/meta/llama2";
  ASSERT_EQ(unishard({"zero_to_fp32", meta, path("a.safetensors"), "--dtype", "bf16", "--layout",
                      "llama", "--rename", "^=m.", "--save-rules", path("rules.json")})
                .status,
            0);
  EXPECT_EQ(read("rules.json")["layout"], "llama");
  EXPECT_EQ(read("rules.json")["renames"].size(), 1u);
  EXPECT_FALSE(read("rules.json")["cuts"]["tp_replicated_parameter_patterns"].empty());
  const ProcessResult again = unishard({"zero_to_fp32", meta, path("b.safetensors"), "--dtype",
                                        "bf16", "--rules", path("rules.json")});
  ASSERT_EQ(again.status, 0) << again.err;
  expect_equal(path("a.safetensors"), path("b.safetensors"));
}

TEST_F(RulesCommand, ThatContradictAreRefusedBeforeAByteIsWritten) {
  SKIP_WITHOUT_FIXTURES();
  const std::string silent = parallel("mg_tp2_stage1_fp32_no_info");
  write_file(path("names.json"), R"({"renames": [{"from": ".+", "to": "x"}]})");
  write_file(path("cuts.json"), R"({"cuts": {"parameter_to_average_patterns": [".*norm.*"]}})");
  write_file(path("neox.json"), R"({"layout": "neox"})");
  struct Case {
    std::vector<std::string> options;
    int status;
    std::string words;
  };
  const Case cases[] = {
      {{"--merge-rules", path("names.json")}, 2, "has no cuts"},
      {{"--rename", "@" + path("cuts.json")}, 2, "has no names"},
      {{"--rules", path("cuts.json"), "--merge-rules", path("cuts.json")}, 2, "both"},
      {{"--rules", path("neox.json"), "--layout", "bloom"}, 2, "two layouts"},
      {{"--rules", path("cuts.json"), "--save-rules", path("cuts.json")}, 3, "there already"},
      {{"--rules", path("cuts.json")}, 2, "was not cut"},
      {{"--rules", path("cuts.json"), "--rename", "@" + path("none")}, 2, "cannot read"},
  };
  for (const auto& [options, status, words] : cases) {
    std::vector<std::string> command = {"convert", silent, path("out"), "--to", "native"};
    command.insert(command.end(), options.begin(), options.end());
    const ProcessResult refused = unishard(command);
    EXPECT_EQ(refused.status, status) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(words));
    EXPECT_FALSE(fs::exists(path("out")));
  }
}

TEST_F(RulesCommand, PutBothOrOneSideOfADiffTogether) {
  SKIP_WITHOUT_FIXTURES();
  const std::string telling = parallel("mg_tp2_stage1_fp32"),
                    silent = parallel("mg_tp2_stage1_fp32_no_info");
  ASSERT_EQ(
      unishard({"zero_to_fp32", telling, path("a.safetensors"), "--save-rules", path("rules.json")})
          .status,
      0);
  EXPECT_EQ(unishard({"diff", silent, telling}).status, 6);
  const std::vector<std::vector<std::string>> equal = {
      {silent, silent, "--merge-rules", path("rules.json")},
      {silent, telling, "--merge-rules", path("rules.json")},
      {silent, telling, "--merge-rules-a", path("rules.json")},
      {telling, silent, "--merge-rules-b", path("rules.json")},
      {silent, path("a.safetensors"), "--merge-rules-a", path("rules.json")}};
  for (std::vector<std::string> command : equal) {
    command.insert(command.begin(), "diff");
    const ProcessResult result = unishard(command);
    EXPECT_EQ(result.status, 0) << result.out << result.err;
  }
  const ProcessResult refused =
      unishard({"diff", silent, path("a.safetensors"), "--merge-rules", path("rules.json")});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("--merge-rules-a"));
}

/// All that a guess cannot know is how much of a table of the vocabulary is padding.
TEST_F(RulesCommand, AreProposedForRanksThatDoNotTell) {
  SKIP_WITHOUT_FIXTURES();
  const std::string silent = parallel("mg_tp2_stage1_fp32_no_info");
  const ProcessResult proposed = unishard({"inspect", silent, "--layout"});
  ASSERT_EQ(proposed.status, 0) << proposed.err;
  EXPECT_THAT(proposed.err, AllOf(HasSubstr("guess"), HasSubstr("--merge-rules")));
  Json rules = parse_json(proposed.out, "the program's output");
  EXPECT_THAT(rules["comment"][0].get<std::string>(), HasSubstr("A guess"));
  EXPECT_THAT(rules["comment"].dump(), AllOf(HasSubstr("doubtful"), HasSubstr("padding")));
  const Json report = report_of({"inspect", silent, "--layout"});
  EXPECT_EQ(report.at("proposal").at("rules"), rules);
  EXPECT_EQ(report.at("proposal").at("cuts")[0].at("shards").size(), 2u);
  // Nothing uses it by itself.
  EXPECT_EQ(unishard({"zero_to_fp32", silent, path("b.safetensors")}).status, 6);
  EXPECT_EQ(unishard({"inspect", silent}).status, 6);
  rules["cuts"]["vocabulary_parameter_patterns"] = {".*word_embeddings.*", "output_layer.*"};
  rules["cuts"]["original_vocab_size"] = 29;
  write_file(path("rules.json"), rules.dump());
  const ProcessResult joined =
      unishard({"zero_to_fp32", silent, path("b.safetensors"), "--rules", path("rules.json")});
  ASSERT_EQ(joined.status, 0) << joined.err;
  expect_equal(parallel("mg_tp2_stage1_fp32"), path("b.safetensors"));
}

TEST_F(RulesCommand, AreProposedForFilesOfRanks) {
  const fs::path meta = fs::path(UNISHARD_TEST_DATA) / "golden/meta/llama2";
  copy_folder(meta, path("model"));
  fs::remove(path("model/params.json"));
  EXPECT_EQ(unishard({"inspect", path("model")}).status, 6);
  const ProcessResult proposed = unishard({"inspect", path("model"), "--layout"});
  ASSERT_EQ(proposed.status, 0) << proposed.err;
  write_file(path("rules.json"), proposed.out);
  const ProcessResult same =
      unishard({"diff", path("model"), meta, "--merge-rules-a", path("rules.json")});
  EXPECT_EQ(same.status, 0) << same.out << same.err;
  // Where the files tell, there is nothing to guess.
  EXPECT_EQ(unishard({"inspect", meta, "--layout"}).status, 2);
}

TEST_F(RulesCommand, HaveASchemaThatIsPrinted) {
  const Json schema =
      parse_json(unishard({"formats", "--rules-schema"}).out, "the program's output");
  EXPECT_TRUE(schema.at("properties").contains("renames"));
  EXPECT_TRUE(schema.at("properties").contains("cuts"));
}

}  // namespace
}  // namespace unishard::test
