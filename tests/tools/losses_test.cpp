// What the verbs do about things that a reader could not read.
#include "workflows/losses.hpp"

#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "fixtures.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace unishard::tools {
namespace {

using converters::Loss;
using converters::Losses;
using converters::Role;
using testing::HasSubstr;
using testing::Not;

LossEffect effect(Role role, const LossRules& rules) {
  return effect_of({.role = role, .name = "w"}, rules);
}

TEST(LossRules, AModelNeedsItsWeightsAndNothingOfTheOptimizer) {
  const LossRules model{.wanted = Wanted::Model};
  EXPECT_EQ(effect(Role::Weight, model), LossEffect::Error);
  EXPECT_EQ(effect(Role::Scale, model), LossEffect::Error);
  EXPECT_EQ(effect(Role::Buffer, model), LossEffect::Note);
  EXPECT_EQ(effect(Role::StaleFile, model), LossEffect::Note);
  EXPECT_EQ(effect(Role::OtherModel, model), LossEffect::Note);
  for (const Role role : {Role::State, Role::Optimizer, Role::Setting, Role::ClientValue,
                          Role::Metadata, Role::SideFile})
    EXPECT_EQ(effect(role, model), LossEffect::None) << to_string(role);
}

TEST(LossRules, ATrainingStateNeedsWeightsAndTheOptimizerAndHearsOfTheRest) {
  const LossRules all{.wanted = Wanted::Everything};
  for (const Role role : {Role::Weight, Role::Scale, Role::Optimizer})
    EXPECT_EQ(effect(role, all), LossEffect::Error) << to_string(role);
  for (const Role role : {Role::Buffer, Role::State, Role::Setting, Role::ClientValue,
                          Role::Metadata, Role::SideFile, Role::StaleFile, Role::OtherModel})
    EXPECT_EQ(effect(role, all), LossEffect::Note) << to_string(role);
}

TEST(LossRules, WhatIsDamagedIsToldAndEndsWhatNeedsIt) {
  for (const Role role : {Role::Optimizer, Role::Setting, Role::State}) {
    const Loss loss{.role = role, .name = "optimizer.pt", .is_broken = true};
    EXPECT_EQ(effect_of(loss, {.wanted = Wanted::Model}), LossEffect::Note) << to_string(role);
    EXPECT_EQ(effect_of(loss, {.wanted = Wanted::Everything}),
              role == Role::State ? LossEffect::Note : LossEffect::Error)
        << to_string(role);
  }
}

TEST(LossRules, WhatIsNotWantedIsNotMissed) {
  const Loss frozen{.role = Role::Weight, .name = "base.w", .is_frozen = true};
  EXPECT_EQ(effect_of(frozen, {.wanted = Wanted::Model, .excludes_frozen = true}),
            LossEffect::None);
  EXPECT_EQ(effect_of(frozen, {.only = {"head.*"}}), LossEffect::None);
  EXPECT_EQ(effect_of(frozen, {.only = {"base.*"}}), LossEffect::Error);
  // A value of the client state arrives where the whole state does.
  const Loss kept{.role = Role::Weight, .name = "w", .is_kept = true};
  EXPECT_EQ(effect_of(kept, {.wanted = Wanted::Everything}), LossEffect::Note);
  EXPECT_EQ(effect_of(kept, {.wanted = Wanted::Model}), LossEffect::Error);
}

TEST(LossRules, MissingWeightsAreRefusedByNameOrAllowedAndCounted) {
  Losses losses = {{.role = Role::SideFile, .name = "x.txt"}};
  for (int i = 0; i < 20; ++i)
    losses.push_back({.role = Role::Weight, .name = "w" + std::to_string(i), .why = "sparse"});
  LossRules rules{.wanted = Wanted::Everything};
  const auto error = test::error_of([&] { losses_to_name(losses, rules, "ckpt"); });
  EXPECT_EQ(error.code(), ErrorCode::Unsupported);
  EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("ckpt: 20 of"), HasSubstr("weight \"w0\""),
                                           HasSubstr("and 12 more")));
  EXPECT_THAT(error.hint(), HasSubstr("--allow-missing"));
  rules.allows_missing = true;
  const Losses named = losses_to_name(losses, rules, "ckpt");
  EXPECT_EQ(named.size(), 21u);
  EXPECT_EQ(count_missing(named, rules), 20u);
  EXPECT_EQ(named.back().name, "x.txt") << "what is missing comes first";
}

/// A file of torch.save with a sparse tensor "w" beside ordinary ones.
class AFileWithASparseTensor : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(input_)) GTEST_SKIP() << input_ << " is not here";
  }
  const std::filesystem::path input_ = test::fixtures() / "public/torchao_left_out/input/sparse.pt";
  const test::TempDir temp_;
  const std::filesystem::path out_ = temp_.path() / "out.safetensors";
};

TEST(DoubtsAboutWeights, AreSaidByZeroToFp32) {
  const std::filesystem::path padded = test::fixtures() / "parallel/mg_tp2_stage1_fp32/checkpoint",
                              numbered = test::fixtures() / "public/bnb_trainer_nested/input";
  if (!std::filesystem::exists(padded)) GTEST_SKIP() << padded << " is not here";
  const test::TempDir temp;
  const auto run = [&](const std::filesystem::path& input, const char* name) {
    const test::ProcessResult result =
        test::unishard({"zero_to_fp32", input, temp.path() / name, "--json"});
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  };
  EXPECT_THAT(run(padded, "a.safetensors"), HasSubstr("3 rows of padding"));
  EXPECT_THAT(run(numbered, "b.safetensors"), Not(HasSubstr("have numbers")))
      << "how the states of an optimizer were named";
}

TEST_F(AFileWithASparseTensor, IsRefusedByEveryVerbThatWouldWriteLess) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"zero_to_fp32", input_, out_},
        {"zero_to_fp32", input_, out_, "-q"},
        {"convert", input_, out_},
        {"convert", input_, out_, "--weights-only"},
        {"convert", input_, temp_.path() / "native", "--to", "native"},
        {"reshard", input_, temp_.path() / "dcp", "--to", "dcp", "-w", "2"}}) {
    const test::ProcessResult result = test::unishard(command);
    EXPECT_EQ(result.status, 6) << command[0] << result.err;
    EXPECT_THAT(result.err, HasSubstr("weight \"w\"")) << command[0];
    EXPECT_FALSE(std::filesystem::exists(out_));
  }
}

TEST_F(AFileWithASparseTensor, IsWrittenWithoutItWhereThatIsAllowedAndNamed) {
  test::ProcessResult result = test::unishard({"zero_to_fp32", input_, out_, "--allow-missing"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, testing::AllOf(HasSubstr("left out: weight \"w\""),
                                         HasSubstr("1 MISSING, named above")));
  const std::filesystem::path quiet = temp_.path() / "quiet.safetensors";
  result = test::unishard({"zero_to_fp32", input_, quiet, "--allow-missing", "-q"});
  EXPECT_THAT(result.err, HasSubstr("left out: weight \"w\"")) << "-q does not silence it";
  const Json report = test::report_of(
      {"zero_to_fp32", input_, temp_.path() / "json.safetensors", "--allow-missing"});
  EXPECT_EQ(report["missing"], 1);
  EXPECT_EQ(report["losses"][0]["role"], "weight");
  EXPECT_EQ(report["losses"][0]["name"], "w");
}

TEST_F(AFileWithASparseTensor, IsNotSoundAndEqualToNothing) {
  const Json verified = test::report_of({"verify", input_}, 1);
  EXPECT_EQ(verified["ok"], false);
  EXPECT_EQ(verified["findings"][0]["code"], "incomplete");
  EXPECT_EQ(test::report_of({"inspect", input_})["losses"][0]["name"], "w");
  const Json diff = test::report_of({"diff", input_, input_}, 1);
  EXPECT_EQ(diff["differences"][0]["kind"], "unread");
}

/// What cannot be read is equal to nothing, and what is in no file of either is no difference.
TEST(AnEmptyModel, OfFsdp1IsLikeItselfAndUnlikeTheModel) {
  namespace fs = std::filesystem;
  const test::TempDir temp;
  const fs::path whole = temp.path() / "whole", empty = temp.path() / "empty",
                 model = empty / "pytorch_model_fsdp_0";
  for (const fs::path& folder : {whole, empty})
    test::copy_folder(fs::path(UNISHARD_TEST_DATA) / "golden/torch/fsdp2_lora", folder);
  fs::remove_all(model);
  fs::create_directory(model);
  fs::rename(empty / "fsdp1_model.metadata", model / ".metadata");
  for (const char* name : {"__0_0.distcp", "__1_0.distcp"}) test::write_file(model / name, "");
  const Json same = test::report_of({"diff", empty, empty});
  EXPECT_EQ(same["equal"], true) << same;
  EXPECT_THAT(same.dump(), HasSubstr("in no file of A and of B: weight"));
  EXPECT_THAT(test::report_of({"diff", empty, whole}, 1).dump(), HasSubstr("\"unread\""));
  EXPECT_EQ(test::report_of({"verify", empty}, 1)["findings"][0]["code"], "incomplete");
}

/// A model folder with an optimizer that is a link to nothing.
class BrokenLink : public testing::Test {
 protected:
  void SetUp() override {
    test::write_example(temp_.path() / "run");
    ASSERT_EQ(test::unishard({"zero_to_fp32", temp_.path() / "run", model_}).status, 0);
    std::filesystem::create_symlink("gone", model_ / "optimizer.pt");
  }
  const test::TempDir temp_;
  const Path model_ = temp_.path() / "model";
};

TEST_F(BrokenLink, IsAFindingOfVerifyAndAnErrorWhereItIsWanted) {
  const Json report = test::report_of({"verify", "--deep", model_}, 1);
  ASSERT_EQ(report["findings"].size(), 1u) << report.dump();
  EXPECT_EQ(report["findings"][0]["code"], "incomplete");
  EXPECT_THAT(report["findings"][0]["message"].get<std::string>(), HasSubstr("optimizer.pt"));
  EXPECT_EQ(test::unishard({"zero_to_fp32", model_, temp_.path() / "m"}).status, 0);
  const auto refused = test::unishard({"convert", model_, temp_.path() / "n", "--to", "native"});
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.err, HasSubstr("optimizer.pt"));
}

TEST_F(BrokenLink, OfAModelIsNamedByEveryVerb) {
  const Path file = model_ / "model.safetensors";
  std::filesystem::rename(file, model_ / "other.safetensors");
  std::filesystem::create_symlink("gone", file);
  for (const char* verb : {"verify", "inspect"}) {
    const auto refused = test::unishard({verb, model_});
    EXPECT_NE(refused.status, 0);
    EXPECT_THAT(refused.out + refused.err, HasSubstr("model.safetensors would be the model"));
  }
}

/// Which verbs need the optimizer of an input of which something of it is damaged.
void expect_only_the_model(const Path& input, const Path& scratch, const std::string& lost) {
  for (const std::vector<std::string>& verb :
       {std::vector<std::string>{"zero_to_fp32", input, scratch / "a.safetensors"},
        {"convert", input, scratch / "b.safetensors", "--weights-only"}}) {
    const auto result = test::unishard(verb);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr(lost)) << verb.front();
  }
  const auto refused = test::unishard({"convert", input, scratch / "c", "--to", "native"});
  EXPECT_EQ(refused.status, 6) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr(lost));
  const Json report = test::report_of({"verify", "--deep", input}, 1);
  EXPECT_EQ(report["findings"][0]["code"], "incomplete") << report.dump();
}

TEST(DamagedOptimizer, OfATrainerLeavesTheModel) {
  const test::TempDir temp;
  const Path folder = temp.path() / "run";
  std::filesystem::copy(Path(UNISHARD_TEST_DATA) / "golden/trainer/llama", folder);
  test::write_file(folder / "optimizer.pt", "cut short");
  expect_only_the_model(folder, temp.path(), "\"optimizer.pt\"");
}

TEST(DamagedOptimizer, InOneStepCounterLeavesTheModel) {
  const test::TempDir temp;
  const Path file = temp.path() / "in.pt";
  std::filesystem::copy_file(Path(UNISHARD_TEST_DATA) / "golden/torch/training.pt", file);
  const std::string three("\0\0\x40\x40PK", 6);  // a float32 alone in its entry
  const std::size_t at = test::read_file(file).find(three);
  ASSERT_NE(at, std::string::npos);
  test::flip_bits(file, at + 1);
  expect_only_the_model(file, temp.path(), "step");
}

TEST(ModelFolder, TakesNoResultIntoItself) {
  const test::TempDir temp;
  test::write_example(temp.path() / "run");
  const Path model = temp.path() / "model";
  ASSERT_EQ(test::unishard({"zero_to_fp32", temp.path() / "run", model}).status, 0);
  const auto refused = test::unishard({"convert", model, model / "out.pt"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("inside the model's folder"));
}

}  // namespace
}  // namespace unishard::tools
