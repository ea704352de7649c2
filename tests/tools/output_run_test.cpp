// A result that goes into a folder which has checkpoints, written by the real program.
#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "team/team.hpp"
#include "temp_dir.hpp"
#include "workflows/conversion.hpp"
#include "workflows/conversion_plan.hpp"

namespace unishard::test {
namespace {

namespace fs = std::filesystem;

class OutputRun : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const std::int64_t step : {5, 9}) write_example(in_, {.step = step, .tag = tag_of(step)});
  }
  static std::string tag_of(std::int64_t step) { return "global_step" + std::to_string(step); }

  ProcessResult convert(const std::string& tag, std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"convert", in_, run_, "--to", GetParam(), "--tag", tag};
    words.insert(words.end(), more.begin(), more.end());
    return unishard(words);
  }
  /// Returns the tag that the run resumes from.
  std::string latest() const {
    const bool is_universal = GetParam() == "deepspeed-universal";
    std::string text = read_file(run_ + (is_universal ? "/latest_universal" : "/latest"));
    text.erase(text.find_last_not_of('\n') + 1);
    return text;
  }

  const TempDir temp_;
  const std::string in_ = temp_.path() / "in";
  const std::string run_ = temp_.path() / "run";
};

TEST_P(OutputRun, LatestGoesForwardWithTheStepsOfOneRun) {
  ASSERT_EQ(convert(tag_of(5)).status, 0);
  ASSERT_EQ(convert(tag_of(9)).status, 0);
  EXPECT_EQ(latest(), tag_of(9));
}

TEST_P(OutputRun, AnOlderStepOfTheRunDoesNotMoveLatest) {
  ASSERT_EQ(convert(tag_of(9)).status, 0);
  const ProcessResult older = convert(tag_of(5));
  EXPECT_EQ(older.status, 0) << older.err;
  EXPECT_THAT(older.err, testing::HasSubstr("still names \"global_step9\""));
  EXPECT_EQ(latest(), tag_of(9));
  EXPECT_TRUE(fs::exists(fs::path(run_) / tag_of(5)));
}

TEST_P(OutputRun, AnotherRunIsRefusedUnlessAskedFor) {
  ASSERT_EQ(convert(tag_of(5)).status, 0);
  const auto before = read_files_below(run_);
  for (const std::vector<std::string>& other :
       {std::vector<std::string>{"--weights-only", "--out-tag", "weights"},
        {"--rename", "wte=emb", "--out-tag", "renamed"}}) {
    const ProcessResult refused = convert(tag_of(9), other);
    EXPECT_EQ(refused.status, 3) << other.front();
    EXPECT_THAT(refused.err,
                testing::AllOf(testing::HasSubstr(tag_of(5)), testing::HasSubstr("--fresh")));
    EXPECT_EQ(read_files_below(run_), before);
  }
  const ProcessResult asked =
      convert(tag_of(9), {"--rename", "wte=emb", "--out-tag", "renamed", "--fresh"});
  EXPECT_EQ(asked.status, 0) << asked.err;
  EXPECT_EQ(latest(), "renamed");
  EXPECT_TRUE(fs::exists(fs::path(run_) / tag_of(5)));
}

INSTANTIATE_TEST_SUITE_P(Formats, OutputRun,
                         testing::Values("native", "deepspeed", "deepspeed-universal"),
                         [](const auto& tested) {
                           return tested.param == "native"      ? "Native"
                                  : tested.param == "deepspeed" ? "DeepSpeed"
                                                                : "Universal";
                         });

TEST(ConversionsAtOnce, OfAnotherRunIsRefusedWhenItIsPublished) {
  const TempDir temp;
  write_example(temp.path() / "a", {.step = 5});
  write_example(temp.path() / "b", {.step = 5, .layers = 3});
  tools::Team team;
  std::vector<std::unique_ptr<converters::Source>> sources;
  std::vector<std::unique_ptr<tools::Conversion>> conversions;
  for (const char* name : {"a", "b"}) {
    sources.push_back(converters::open_source(posix_storage(), temp.path() / name));
    conversions.push_back(std::make_unique<tools::Conversion>(
        team, *sources.back(), tools::plan_convert(*sources.back(), {}),
        tools::ConversionOptions{
            .verb = "convert",
            .input = temp.path() / name,
            .output = {.format = "native", .path = temp.path() / "run", .tag = name}}));
  }
  TransferOptions transfer;
  transfer.observer = &no_observer();
  conversions[0]->run(transfer);
  EXPECT_THAT(error_of([&] { conversions[1]->run(transfer); }),
              Fails(ErrorCode::AlreadyExists, testing::HasSubstr("another run")));
  EXPECT_FALSE(fs::exists(temp.path() / "run/b"));
}

TEST(ReshardIntoARun, OfAnotherModelIsRefused) {
  const TempDir temp;
  const std::string in = temp.path() / "in", run = temp.path() / "run";
  write_example(in, {.step = 9, .tag = "global_step9", .layers = 3});
  write_example(run, {.step = 5, .tag = "global_step5"});
  const ProcessResult refused = test::unishard({"reshard", in, run, "-w", "2"});
  EXPECT_EQ(refused.status, 3) << refused.err;
  EXPECT_THAT(refused.err, testing::HasSubstr("global_step5"));
  EXPECT_EQ(test::unishard({"reshard", in, run, "-w", "2", "--fresh"}).status, 0);
}

}  // namespace
}  // namespace unishard::test
