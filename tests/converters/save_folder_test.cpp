// What a run decides about its folder of checkpoints, for everything that can be in it.
#include "unishard/converters/save_folder.hpp"

#include "unishard/converters/registry.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/manifest.hpp"
#include "unishard/format/staging_names.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"
#include "whole_copy.hpp"

#include <gtest/gtest.h>

namespace unishard::converters {
namespace {

using Action = ResumeDecision::Action;
using test::write_example;

class SaveFolder : public testing::Test {
 protected:
  const Path& folder() const { return folder_.path(); }
  void write(const Path& name, const std::string& text) const {
    test::write_file(folder() / name, text);
  }
  void save(std::int64_t step) const {
    write_example(folder(), {.step = step, .tag = "global_step" + std::to_string(step)});
  }
  void write_deepspeed(const Path& to) const {
    test::TempDir native;
    const auto source = open_source(posix_storage(), write_example(native.path(), {}));
    const auto sink =
        make_sink(posix_storage(), {.format = "deepspeed", .path = to, .tag = "global_step4"},
                  source->catalog());
    copy(whole_copy(*source, source->catalog()), *sink, {});
    sink->commit();
  }
  ResumeDecision decide(bool fresh = false) const {
    return decide_resume(posix_storage(), folder(), fresh);
  }
  /// Expects that `call` throws an error of this code; returns its message and hint.
  template <class Call>
  static std::string failure(ErrorCode code, const Call& call) {
    const Error error = test::error_of(call);
    EXPECT_EQ(error.code(), code) << error.what();
    return test::message_and_hint(error);
  }
  std::string refusal(ErrorCode code, bool fresh = false) const {
    return failure(code, [&] { decide(fresh); });
  }
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

 private:
  test::TempDir folder_;
};

TEST_F(SaveFolder, NothingIsAFreshStart) {
  EXPECT_EQ(decide().action, Action::StartFresh);
  EXPECT_TRUE(has(decide().explanation, "no checkpoint in " + folder().string() + " yet"));
  const auto missing = decide_resume(posix_storage(), folder() / "missing", false);
  EXPECT_EQ(missing.action, Action::StartFresh);
  write("losses.jsonl", "{}");
  write("notes/today.txt", "it goes well");
  write(".global_step2.lock", "");
  EXPECT_EQ(decide().action, Action::StartFresh);
}

TEST_F(SaveFolder, TheNewestCheckpointIsLoaded) {
  save(2);
  save(4);
  for (const bool fresh : {false, true}) {
    EXPECT_EQ(decide(fresh).action, Action::Load);
    EXPECT_FALSE(decide(fresh).beside);
  }
  std::filesystem::remove(folder() / "latest");
  EXPECT_EQ(decide().action, Action::Load);
}

TEST_F(SaveFolder, DeadStagingOfAFirstSaveIsAFreshStartThatSaysSo) {
  const std::string staging = "global_step2.partial-" + std::string(32, 'a');
  write(staging + "/shard-00000-of-00001.h5", "half a shard");
  const ResumeDecision decision = decide();
  EXPECT_EQ(decision.action, Action::StartFresh);
  EXPECT_TRUE(has(decision.explanation, staging)) << decision.explanation;
  EXPECT_TRUE(has(decision.explanation, "no save was ever completed")) << decision.explanation;
  EXPECT_TRUE(std::filesystem::exists(folder() / staging));
}

TEST_F(SaveFolder, LatestWithoutItsCheckpointIsNoFreshStart) {
  write("latest", "global_step4\n");
  const std::string error = refusal(ErrorCode::NotFound);
  EXPECT_TRUE(has(error, "names \"global_step4\", which is not a complete checkpoint")) << error;
  EXPECT_TRUE(has(error, "`unishard inspect " + folder().string() + " --tags`")) << error;
  EXPECT_TRUE(has(error, "`unishard verify " + folder().string() + " --all`")) << error;
  EXPECT_TRUE(has(error, "--fresh")) << error;
  const ResumeDecision fresh = decide(true);
  EXPECT_EQ(fresh.action, Action::StartFresh);
  EXPECT_TRUE(fresh.beside);
  std::filesystem::remove(folder() / "latest");
  std::filesystem::create_symlink("gone", folder() / "latest");
  refusal(ErrorCode::NotFound);
}

TEST_F(SaveFolder, ADamagedLatestIsNoFreshStart) {
  write("latest", "../elsewhere");
  refusal(ErrorCode::Corrupt);
  write("latest", "");
  refusal(ErrorCode::Corrupt);
}

TEST_F(SaveFolder, ShardsWithoutAManifestAreNoFreshStart) {
  save(4);
  std::filesystem::remove(folder() / "global_step4" / kManifestFile);
  EXPECT_TRUE(has(refusal(ErrorCode::NotFound), "global_step4"));
  std::filesystem::remove(folder() / "latest");
  const std::string error = refusal(ErrorCode::NotFound);
  EXPECT_TRUE(has(error, "global_step4 holds shards and no manifest.json")) << error;
  EXPECT_TRUE(decide(true).beside);
}

TEST_F(SaveFolder, ADamagedManifestIsNoFreshStart) {
  save(4);
  const Path manifest = folder() / "global_step4" / kManifestFile;
  std::filesystem::resize_file(manifest, std::filesystem::file_size(manifest) / 2);
  EXPECT_TRUE(has(refusal(ErrorCode::Corrupt), "global_step4/manifest.json"));
  std::filesystem::remove(folder() / "latest");
  EXPECT_TRUE(has(refusal(ErrorCode::NotFound), "no complete checkpoint here"));
  EXPECT_TRUE(decide(true).beside);
}

TEST_F(SaveFolder, AnInterruptedRemovalIsNoFreshStart) {
  write("global_step4.removed-" + std::string(32, 'a') + "/shard-00000-of-00001.h5", "");
  EXPECT_TRUE(has(refusal(ErrorCode::NotFound), "whose removal was interrupted"));
}

TEST_F(SaveFolder, AWholeCheckpointIsNeverPassedOver) {
  save(2);
  save(4);
  std::filesystem::remove_all(folder() / "global_step4");
  for (const bool fresh : {false, true}) {
    const std::string error = refusal(ErrorCode::NotFound, fresh);
    EXPECT_TRUE(has(error, "--resume " + (folder() / "global_step2").string())) << error;
  }
}

TEST_F(SaveFolder, FreshIsAWayOutWhenAShardIsGone) {
  save(4);
  std::filesystem::remove(folder() / "global_step4" / "shard-00001-of-00003.h5");
  EXPECT_EQ(decide().action, Action::Load);  // and the load says what is gone
  EXPECT_EQ(decide(true).action, Action::StartFresh);
  EXPECT_TRUE(decide(true).beside);
}

TEST_F(SaveFolder, AnotherProgramsFolderIsNotMixedWith) {
  write_deepspeed(folder());
  for (const bool fresh : {false, true}) {
    const std::string error = refusal(ErrorCode::AlreadyExists, fresh);
    EXPECT_TRUE(has(error, "another program (deepspeed, \"global_step4\")")) << error;
    EXPECT_TRUE(has(error, "--resume " + folder().string() + " --save OTHER")) << error;
  }
  failure(ErrorCode::AlreadyExists, [&] { require_own_folder(posix_storage(), folder()); });
}

TEST_F(SaveFolder, AnotherProgramsCheckpointBesideIsNoFreshStart) {
  write_deepspeed(folder() / "runs");
  const std::string error = refusal(ErrorCode::NotFound);
  EXPECT_TRUE(has(error, "runs is a checkpoint of another program (deepspeed)")) << error;
  EXPECT_TRUE(decide(true).beside);
}

TEST_F(SaveFolder, APartOfAnotherProgramsCheckpointIsNoFreshStart) {
  write("global_step4/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "");
  EXPECT_TRUE(has(refusal(ErrorCode::AlreadyExists), "(deepspeed)"));
  std::filesystem::remove_all(folder() / "global_step4");
  write("step4/__0_0.distcp", "");
  EXPECT_TRUE(has(refusal(ErrorCode::NotFound), "step4"));
}

TEST_F(SaveFolder, AModelBesideAPlaceDoesNoHarm) {
  write("model.safetensors", std::string(8, '\0'));
  failure(ErrorCode::AlreadyExists, [&] { require_own_folder(posix_storage(), folder()); });
  require_own_place(posix_storage(), folder(), "dcp");
  write("dcp/model.safetensors", std::string(8, '\0'));
  failure(ErrorCode::AlreadyExists, [&] { require_own_place(posix_storage(), folder(), "dcp"); });
  write("theirs/.metadata", "x");
  const auto inside = [&] { require_own_place(posix_storage(), folder() / "theirs", "x"); };
  EXPECT_TRUE(has(failure(ErrorCode::AlreadyExists, inside), "another program"));
  write_deepspeed(folder() / "runs");
  failure(ErrorCode::AlreadyExists,
          [&] { require_own_place(posix_storage(), folder() / "runs", "x"); });
}

TEST_F(SaveFolder, OneCheckpointIsNoFolderOfCheckpoints) {
  save(4);
  const auto inside = [&] { require_own_folder(posix_storage(), folder() / "global_step4"); };
  EXPECT_TRUE(has(failure(ErrorCode::InvalidArgument, inside), "is one checkpoint"));
  std::filesystem::remove(folder() / "global_step4" / kManifestFile);
  failure(ErrorCode::InvalidArgument, inside);
}

TEST_F(SaveFolder, TagsThatARunWillSaveMustBeFree) {
  const PlannedTags planned{.prefix = "global_step", .first = 4, .last = 11, .interval = 3};
  const auto check = [&](bool may_replace = true) {
    require_free_names(posix_storage(), folder(), planned, may_replace);
  };
  for (const char* other :
       {"global_step3", "global_step4", "global_step7", "global_step12", "global_step06",
        "global_step6x", "global_step", "global_step+6", "step6", "xglobal_step6"}) {
    write(std::string(other) + "/notes.txt", "mine");
  }
  check();
  for (const char* taken : {"global_step6", "global_step9", "global_step11"}) {
    write(taken, "mine");
    EXPECT_TRUE(has(failure(ErrorCode::AlreadyExists, check), taken));
    std::filesystem::remove(folder() / taken);
  }
  std::filesystem::create_symlink("gone", folder() / "global_step9");
  failure(ErrorCode::AlreadyExists, check);
  std::filesystem::remove(folder() / "global_step9");
  save(9);
  check();
  failure(ErrorCode::AlreadyExists, [&] { check(false); });
}

TEST_F(SaveFolder, LatestOfAnotherProgramStays) {
  write("latest", "global_step4");
  const PlannedTags planned{.prefix = "global_step", .first = 0, .last = 2, .interval = 0};
  const auto check = [&] { require_free_names(posix_storage(), folder(), planned, true); };
  check();  // it names nothing
  write("global_step4/model.pt", "");
  failure(ErrorCode::AlreadyExists, check);
  for (const std::string& text : {std::string("my notes\nline 2\n"), std::string(5000, 'x')}) {
    write("latest", text);
    EXPECT_NE(failure(ErrorCode::AlreadyExists, check).find("does not hold the name"),
              std::string::npos);
  }
  for (const std::string& blank : {std::string(), std::string(20, '\0')}) {
    write("latest", blank);
    check();
  }
}

TEST_F(SaveFolder, AFirstSaveThatWasKilledBeforeLatestDoesNotBarANewStart) {
  const auto start = [&] { return decide_start(posix_storage(), folder(), false).action; };
  const std::string partial = marked_name("latest", kPartialMark, new_save_id());
  save(1);
  std::filesystem::remove(folder() / "latest");
  failure(ErrorCode::AlreadyExists, start);
  write(partial, "global_step2\n");
  failure(ErrorCode::AlreadyExists, start);
  write(partial, "global_step1\n");
  EXPECT_EQ(start(), Action::StartFresh);
  EXPECT_EQ(decide().action, Action::Load);  // asked to resume, it does
  save(2);
  std::filesystem::remove(folder() / "latest");
  failure(ErrorCode::AlreadyExists, start);  // two saves: it was not the first
}

TEST_F(SaveFolder, WritingIsTriedAndLeavesNothing) {
  require_writable(posix_storage(), folder() / "a" / "b");
  EXPECT_TRUE(std::filesystem::is_empty(folder() / "a" / "b"));
  write("file", "");
  std::filesystem::create_symlink("gone/far", folder() / "link");
  for (const Path& path :
       {folder() / "file", folder() / "file" / "x", folder() / "link", Path("/proc"),
        Path("/proc/x"), Path("/sys"), folder() / std::string(300, 'x')}) {
    const Error error = test::error_of([&] { require_writable(posix_storage(), path); });
    EXPECT_TRUE(has(error.what(), path.string())) << error.what();
    EXPECT_EQ(exit_status(error.code()), 3) << error.what();
  }
}

}  // namespace
}  // namespace unishard::converters
