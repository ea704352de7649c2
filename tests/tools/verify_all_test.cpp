// `verify --all` looks at every checkpoint of a folder, whatever format each is in, and says of
// each what it looked at.
#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class VerifyAll : public testing::Test {
 protected:
  VerifyAll() {
    write_example(temp.path() / "example", {.world_size = 2, .stage = 2});
    fs::create_directory(folder);
  }

  /// Adds a checkpoint of a format to the folder.
  void add(const std::string& tag, const std::string& format) const {
    const fs::path made = temp.path() / ("made-" + tag);
    const ProcessResult result =
        unishard({"convert", temp.path() / "example", made, "--to", format, "--out-tag", tag});
    ASSERT_EQ(result.status, 0) << result.err;
    fs::rename(made / tag, folder / tag);
  }
  void write_latest(const std::string& name, const std::string& tag) const {
    write_file(folder / name, tag);
  }

  Json verify(std::vector<std::string> more, int expected_status) const {
    more.insert(more.begin(), {"verify", folder});
    return report_of(more, expected_status);
  }
  static std::vector<std::string> tags(const Json& report) {
    std::vector<std::string> tags;
    for (const Json& checked : report["checked"])
      tags.push_back(checked["tag"].get<std::string>() + " " +
                     checked["format"].get<std::string>());
    return tags;
  }

  const TempDir temp;
  const fs::path folder = temp.path() / "run";
};

TEST_F(VerifyAll, AFolderOfRunsIsVerifiedRunByRun) {
  add("global_step7", "native");
  add("global_step8", "deepspeed");
  const fs::path runs = temp.path() / "runs";
  fs::create_directories(runs / "notes");
  write_file(runs / "notes/readme.txt", "mine");
  fs::create_directories(runs / "a");
  fs::create_directories(runs / "b");
  fs::rename(folder / "global_step7", runs / "a/global_step7");
  fs::rename(folder / "global_step8", runs / "b/global_step8");
  write_file(runs / "a/latest", "global_step7");
  fs::create_directory_symlink(runs, runs / "self");
  const ProcessResult refused = unishard({"verify", runs, "--json"});
  EXPECT_EQ(refused.status, 6) << refused.out;
  EXPECT_THAT(refused.err, HasSubstr("folders that do: a, b"));
  const auto checked = [&](std::vector<std::string> more, int status) {
    more.insert(more.begin(), {"verify", runs});
    return tags(report_of(more, status));
  };
  const auto both = UnorderedElementsAre("global_step7 native", "global_step8 deepspeed");
  EXPECT_THAT(checked({"--all"}, 0), both);
  EXPECT_THAT(checked({"--all", "--procs", "2"}, 0), both);
  // Beside a checkpoint, too.
  fs::remove(runs / "self");
  fs::copy(runs / "a/global_step7", runs / "global_step7");
  EXPECT_EQ(checked({"--all"}, 0).size(), 3u);
  fs::resize_file(runs / "a/global_step7/shard-00001-of-00002.h5", 100);
  EXPECT_EQ(report_of({"verify", runs, "--all"}, 1)["findings"].size(), 1u);
}

TEST_F(VerifyAll, ATagThatIsALinkIsLookedAt) {
  add("global_step7", "native");
  fs::rename(folder / "global_step7", temp.path() / "elsewhere");
  fs::create_directory_symlink(temp.path() / "elsewhere", folder / "global_step7");
  write_latest("latest", "global_step7\n");
  EXPECT_THAT(tags(verify({"--all"}, 0)), UnorderedElementsAre("global_step7 native"));
  fs::resize_file(temp.path() / "elsewhere/shard-00001-of-00002.h5", 100);
  EXPECT_EQ(verify({"--all"}, 1)["findings"].size(), 1u);
}

TEST_F(VerifyAll, CheckpointsBesideAFinalModelAreLookedAt) {
  const fs::path example = temp.path() / "example";
  for (const fs::path& model : {folder, folder / "checkpoint-4"}) {
    const ProcessResult made = unishard({"zero_to_fp32", example, temp.path() / "model"});
    ASSERT_EQ(made.status, 0) << made.err;
    fs::create_directories(model);
    fs::rename(temp.path() / "model/model.safetensors", model / "model.safetensors");
    fs::remove_all(temp.path() / "model");
  }
  EXPECT_EQ(verify({"--all"}, 0)["checked"].size(), 2u);
  fs::resize_file(folder / "checkpoint-4/model.safetensors", 3000);
  EXPECT_EQ(verify({"--all"}, 1)["findings"].size(), 1u);
}

TEST_F(VerifyAll, RunsBesideAModelFileAreLookedAt) {
  add("global_step7", "native");
  write_latest("latest", "global_step7\n");
  const fs::path runs = temp.path() / "runs";
  fs::create_directories(runs);
  fs::rename(folder, runs / "run");
  ASSERT_EQ(unishard({"zero_to_fp32", runs / "run", runs / "model.safetensors"}).status, 0);
  EXPECT_THAT(tags(report_of({"verify", runs, "--all"})),
              UnorderedElementsAre(" safetensors", "global_step7 native"));
  fs::rename(runs / "model.safetensors", runs / "a.safetensors");
  fs::copy(runs / "a.safetensors", runs / "b.safetensors");
  const ProcessResult several = unishard({"verify", runs});
  EXPECT_EQ(several.status, 6) << several.out;
  EXPECT_THAT(several.err, HasSubstr("name one of the files"));
}

TEST_F(VerifyAll, ASubFolderOfSeveralModelFilesIsNamedAndTheRestVerified) {
  add("global_step7", "native");
  write_latest("latest", "global_step7\n");
  fs::create_directories(folder / "evals");
  ASSERT_EQ(unishard({"zero_to_fp32", folder, folder / "evals/a.safetensors"}).status, 0);
  fs::copy(folder / "evals/a.safetensors", folder / "evals/b.safetensors");
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--all"}, {"--all", "--deep"}, {"--all", "--procs", "2"}}) {
    const Json report = verify(more, 0);
    EXPECT_THAT(tags(report), UnorderedElementsAre("global_step7 native"));
    EXPECT_THAT(report["notes"].dump(), HasSubstr("evals holds 2 safetensors files"));
  }
  fs::remove_all(folder / "global_step7");
  fs::remove(folder / "latest");
  EXPECT_EQ(unishard({"verify", folder, "--all"}).status, 6) << "nothing was verified";
}

// DeepSpeed's conversion writes file by file; one that was lost must not pass for a parameter
// without that state.
TEST_F(VerifyAll, AStateThatOneUniversalParameterLacksIsFound) {
  for (const std::string file : {"exp_avg_sq.pt", "exp_avg.pt", "fp32.pt"}) {
    add("global_step7", "deepspeed-universal");
    const fs::path zero = folder / "global_step7/zero";
    fs::remove(zero / "wte.weight" / file);
    const Json report = verify({"--all"}, 1);
    EXPECT_THAT(report["findings"][0]["message"].get<std::string>(),
                testing::ContainsRegex("zero/wte.weight/" + file + "(:| is) missing"));
    fs::remove_all(folder / "global_step7");
    fs::remove_all(temp.path() / "made-global_step7");
  }
}

TEST_F(VerifyAll, AnOlderDeepSpeedTagWithoutARankIsFound) {
  add("global_step7", "deepspeed");
  add("global_step8", "deepspeed");
  write_latest("latest", "global_step8");
  EXPECT_THAT(tags(verify({"--all"}, 0)),
              UnorderedElementsAre("global_step7 deepspeed", "global_step8 deepspeed"));
  fs::remove(folder / "global_step7" / "zero_pp_rank_1_mp_rank_00_optim_states.pt");
  const Json report = verify({"--all"}, 1);
  ASSERT_EQ(report["findings"].size(), 1u) << report.dump();
  EXPECT_THAT(report["findings"][0]["path"].get<std::string>(), HasSubstr("global_step7"));
  EXPECT_THAT(report["findings"][0]["message"].get<std::string>(), HasSubstr("rank 1"));
  EXPECT_THAT(tags(report), UnorderedElementsAre("global_step8 deepspeed"));
  EXPECT_EQ(verify({}, 0)["checked"].size(), 1u) << "without --all only the latest";
}

TEST_F(VerifyAll, AFolderOfSeveralFormatsIsCheckedTagByTag) {
  add("a", "native");
  add("b", "deepspeed");
  add("c", "deepspeed-universal");
  add("d", "native");
  write_latest("latest", "d");
  EXPECT_THAT(tags(verify({"--all"}, 0)),
              UnorderedElementsAre("a native", "b deepspeed", "c deepspeed-universal", "d native"));
  EXPECT_THAT(tags(verify({"--all", "--deep"}, 0)).size(), 4u);
  fs::remove(folder / "a" / "shard-00001-of-00002.h5");
  fs::remove(folder / "b" / "mp_rank_00_model_states.pt");
  write_file(folder / "c" / "zero" / "wte.weight" / "fp32.pt", "no");
  const Json report = verify({"--all"}, 1);
  EXPECT_EQ(report["findings"].size(), 3u) << report.dump();
}

TEST_F(VerifyAll, DamageInAnOlderTagIsFoundWithDeep) {
  add("global_step7", "deepspeed");
  add("global_step8", "native");
  write_latest("latest", "global_step8");
  const fs::path file = folder / "global_step7" / "zero_pp_rank_0_mp_rank_00_optim_states.pt";
  flip_bits(file, fs::file_size(file) / 2, 8);
  EXPECT_EQ(verify({"--all", "--deep"}, 1)["findings"].size(), 1u);
  const Json shared = verify({"--all", "--deep", "--procs", "2"}, 1);
  EXPECT_EQ(shared["findings"].size(), 1u) << shared.dump();
}

TEST_F(VerifyAll, LatestThatNamesNothingIsFound) {
  add("global_step7", "deepspeed");
  write_latest("latest", "global_step9");
  const Json report = verify({"--all"}, 1);
  ASSERT_EQ(report["findings"].size(), 1u) << report.dump();
  EXPECT_EQ(report["findings"][0]["code"], "latest-names-missing-tag");
  EXPECT_THAT(tags(report), UnorderedElementsAre("global_step7 deepspeed"));
}

TEST_F(VerifyAll, ShardsWithoutAManifestAreFoundAndOtherFoldersNamed) {
  add("global_step7", "native");
  add("global_step8", "native");
  write_latest("latest", "global_step8");
  fs::remove(folder / "global_step7" / "manifest.json");
  fs::create_directory(folder / "plots");
  const Json report = verify({"--all"}, 1);
  ASSERT_EQ(report["findings"].size(), 1u) << report.dump();
  EXPECT_EQ(report["findings"][0]["code"], "manifest-missing");
  EXPECT_THAT(report["notes"].dump(), HasSubstr("plots"));
}

TEST_F(VerifyAll, TextAndJsonSayWhatWasLookedAt) {
  add("a", "native");
  add("b", "deepspeed");
  write_latest("latest", "a");
  const Json shallow = verify({"--all"}, 0);
  EXPECT_EQ(shallow["checked"][1]["looked_at"], "tables");
  const Json deep = verify({"--all", "--deep"}, 0);
  EXPECT_EQ(deep["checked"][0]["looked_at"], "checksums");
  EXPECT_EQ(deep["checked"][1]["looked_at"], "checksums");
  const ProcessResult said = unishard({"verify", folder, "--all"});
  EXPECT_THAT(said.out, HasSubstr("b (deepspeed)"));
  EXPECT_THAT(said.out, HasSubstr("looked at names, sizes and tables"));
}

}  // namespace
}  // namespace unishard::test
