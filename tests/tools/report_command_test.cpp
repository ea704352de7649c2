// `unishard report`, as a user starts it.
#include "unishard/format/json.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

namespace unishard::test {
namespace {

using testing::HasSubstr;

class ReportCommand : public testing::Test {
 protected:
  void SetUp() override { tag_ = write_example(run_); }
  std::string path(const std::string& name) const { return temp_.path() / name; }

  const TempDir temp_;
  const std::string run_ = temp_.path() / "run";
  const std::string page_ = temp_.path() / "page.html";
  Path tag_;
};

TEST_F(ReportCommand, WritesOnePageThatNamesNothingOutside) {
  const ProcessResult done = unishard({"report", run_, "-o", page_});
  ASSERT_EQ(done.status, 0) << done.err;
  const std::string page = read_file(page_);
  const std::string policy =
      "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-";
  EXPECT_THAT(page, HasSubstr(policy));
  for (const char* outside : {"https:", " src=", "@import", "url(", "<link", "fetch("})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(temp_.path()))
    left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"page.html", "run"}));
}

TEST_F(ReportCommand, StandardOutputGetsTheSamePage) {
  ASSERT_EQ(unishard({"report", run_, "-o", page_}).status, 0);
  EXPECT_EQ(unishard({"report", run_, "-o", "-"}).out, read_file(page_));
  EXPECT_EQ(unishard({"report", run_, "-o", "-", "--json"}).status, 2);
}

TEST_F(ReportCommand, ReplacesAReportAndNothingElse) {
  ASSERT_EQ(unishard({"report", run_, "-o", page_}).status, 0);
  const std::string before = read_file(page_);
  ASSERT_EQ(unishard({"report", run_, run_, "-o", page_}).status, 0);
  EXPECT_NE(read_file(page_), before);
  for (const char* content : {"", "mine", "<!doctype html><title>mine</title>"}) {
    write_file(path("mine.html"), content);
    const ProcessResult refused = unishard({"report", run_, "-o", path("mine.html")});
    EXPECT_EQ(refused.status, 3) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("nothing was overwritten"));
    EXPECT_EQ(read_file(path("mine.html")), content);
  }
  EXPECT_EQ(unishard({"report", run_, "-o", run_}).status, 3);
  EXPECT_EQ(unishard({"report", run_, "-o", tag_ / "page.html"}).status, 2);
  EXPECT_EQ(unishard({"report", run_, "-o", ""}).status, 2);
  std::filesystem::create_symlink(path("nowhere"), path("link.html"));
  EXPECT_EQ(unishard({"report", run_, "-o", path("link.html")}).status, 3);
}

TEST_F(ReportCommand, AFailureLeavesNothing) {
  EXPECT_EQ(unishard({"report", path("none"), "-o", path("new/folder/page.html")}).status, 3);
  EXPECT_FALSE(std::filesystem::exists(path("new")));
  EXPECT_EQ(unishard({"report", run_, "-o", path("new/folder/page.html")}).status, 0);
  EXPECT_TRUE(std::filesystem::exists(path("new/folder/page.html")));
}

TEST_F(ReportCommand, AllListsWhatCannotBeOpened) {
  write_example(run_, {.step = 8, .tag = "later"});
  write_file(tag_ / "manifest.json", "not a manifest");
  const Json report = report_of({"report", run_, "--all", "-o", page_}, 1);
  ASSERT_EQ(report["checkpoints"].size(), 2u);
  EXPECT_EQ(report["checkpoints"][0]["problem"], nullptr);
  EXPECT_NE(report["checkpoints"][1]["problem"], nullptr);
}

TEST_F(ReportCommand, DamageIsStatusOneAndListed) {
  std::filesystem::remove(tag_ / "shard-00002-of-00003.h5");
  const Json report = report_of({"report", run_, "-o", page_}, 1);
  EXPECT_EQ(report["ok"], false);
  EXPECT_GT(report["checkpoints"][0]["findings"], 0);
  EXPECT_THAT(read_file(page_), HasSubstr("shard-missing"));
}

TEST_F(ReportCommand, WhatIsNotThereIsStatusThreeAndNoPage) {
  EXPECT_EQ(unishard({"report", path("none"), "-o", page_}).status, 3);
  EXPECT_EQ(unishard({"report", run_, path("none"), "-o", page_}).status, 3);
  EXPECT_FALSE(std::filesystem::exists(page_));
}

TEST_F(ReportCommand, TheSummaryCountsWhatThePageShows) {
  write_example(run_, {.step = 8, .tag = "later", .changed = "wte.weight"});
  const Json report = report_of({"report", run_, "--all", "-o", page_});
  EXPECT_EQ(report["output"], page_);
  EXPECT_EQ(report["page_bytes"], read_file(page_).size());
  ASSERT_EQ(report["checkpoints"].size(), 2u);
  EXPECT_EQ(report["checkpoints"][0]["tag"], "later");
  EXPECT_EQ(report["compared"]["different"], 3);
}

TEST_F(ReportCommand, AllTakesTheOtherTagsOfOtherFormatsToo) {
  const auto checkpoints = [&](const std::string& input) {
    return report_of({"report", input, "--all", "-o", page_})["checkpoints"].size();
  };
  write_example(run_, {.step = 8, .tag = "later"});
  for (const char* tag : {"global_step7", "later"})
    ASSERT_EQ(unishard({"convert", run_, path("ds"), "--to", "deepspeed", "-t", tag}).status, 0);
  EXPECT_EQ(checkpoints(path("ds")), 2u);
  ASSERT_EQ(unishard({"zero_to_fp32", run_, path("m.safetensors")}).status, 0);
  EXPECT_EQ(checkpoints(path("m.safetensors")), 1u);
}

TEST_F(ReportCommand, EveryFormatHasAReport) {
  for (const char* format :
       {"deepspeed", "deepspeed-universal", "dcp", "torch", "safetensors", "hdf5"}) {
    const std::string suffix = std::string(format) == "torch"         ? ".pt"
                               : std::string(format) == "safetensors" ? ".safetensors"
                               : std::string(format) == "hdf5"        ? ".h5"
                                                                      : "";
    const std::string made = path(std::string("made") + suffix);
    ASSERT_EQ(unishard({"convert", run_, made, "--to", format}).status, 0) << format;
    const Json report = report_of({"report", made, run_, "-o", page_});
    EXPECT_EQ(report["checkpoints"][0]["format"], format);
    EXPECT_EQ(report["compared"]["different"], 0) << format;
    const Json deep = report_of({"report", made, run_, "--deep", "--stats", "-o", page_});
    EXPECT_EQ(deep["checkpoints"][0]["has_stats"], true) << format;
    EXPECT_EQ(deep["compared"]["different"], 0) << format;
    EXPECT_EQ(deep["compared"]["unknown"], 0) << format;
    std::filesystem::remove_all(made);
  }
}

}  // namespace
}  // namespace unishard::test
