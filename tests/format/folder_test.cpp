#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

namespace unishard {
namespace {

using test::error_of;
using test::message_and_hint;
using test::read_file;
using test::write_file;
using testing::HasSubstr;

test::CheckpointSpec at_step(std::int64_t step) {
  return {.world_size = 2, .step = step, .tag = "global_step" + std::to_string(step)};
}

std::vector<std::string> names(const std::vector<TagEntry>& tags) {
  std::vector<std::string> out;
  for (const TagEntry& tag : tags) out.push_back(tag.tag);
  return out;
}

TEST(CheckpointFolder, ListsTagsByCommitAndSkipsWhatIsNotCommitted) {
  const test::TempDir dir;
  for (const std::int64_t step : {9, 10, 2}) test::write_example(dir.path(), at_step(step));
  std::filesystem::create_directory(dir.path() / "empty");
  std::filesystem::create_directory(dir.path() / ("global_step11.partial-" + std::string(32, 'a')));
  write_file(dir.path() / "notes.txt", "x");
  EXPECT_EQ(names(list_tags(posix_storage(), dir.path())),
            (std::vector<std::string>{"global_step9", "global_step10", "global_step2"}));
  EXPECT_EQ(read_latest(posix_storage(), dir.path()), "global_step2");
}

TEST(CheckpointFolder, ResolvesFolderTagAndLatest) {
  const test::TempDir dir;
  test::write_example(dir.path(), at_step(1));
  test::write_example(dir.path(), at_step(2));
  Storage& storage = posix_storage();
  EXPECT_EQ(resolve_checkpoint(storage, dir.path(), {}).filename(), "global_step2");
  EXPECT_EQ(resolve_checkpoint(storage, dir.path(), "global_step1").filename(), "global_step1");
  EXPECT_EQ(resolve_checkpoint(storage, dir.path() / "global_step1", {}).filename(),
            "global_step1");
  EXPECT_THAT(message_and_hint(error_of([&] { resolve_checkpoint(storage, dir.path(), "nope"); })),
              HasSubstr("global_step1, global_step2"));
  EXPECT_THAT(
      message_and_hint(error_of([&] { resolve_checkpoint(storage, dir.path() / "gone", {}); })),
      HasSubstr("no such folder"));
  EXPECT_THAT(message_and_hint(error_of([&] {
                resolve_checkpoint(storage, dir.path() / "global_step1", "global_step2");
              })),
              HasSubstr("has no tag"));
  std::filesystem::remove(dir.path() / "latest");
  EXPECT_EQ(resolve_checkpoint(storage, dir.path(), {}).filename(), "global_step2");
  write_file(dir.path() / "latest", "gone\n");
  EXPECT_THAT(message_and_hint(error_of([&] { resolve_checkpoint(storage, dir.path(), {}); })),
              HasSubstr("names \"gone\""));
  write_file(dir.path() / "latest", "a/../../b");
  EXPECT_THAT(message_and_hint(error_of([&] { resolve_checkpoint(storage, dir.path(), {}); })),
              HasSubstr("latest"));
}

TEST(Commit, ReplacesACheckpointOfTheSameTag) {
  const test::TempDir dir;
  test::CheckpointSpec spec = at_step(5);
  const Path folder = test::write_example(dir.path(), spec);
  const auto before = identity(CheckpointReader(posix_storage(), folder).catalog());
  spec.seed = 2;
  spec.world_size = 4;
  test::write_example(dir.path(), spec);
  const CheckpointReader after(posix_storage(), folder);
  EXPECT_NE(identity(after.catalog()), before);
  EXPECT_EQ(after.shards().size(), 4u);
  EXPECT_EQ(posix_storage().list(dir.path()).size(), 2u) << "only latest and the tag are left";
}

TEST(Prune, KeepsTheNewestAndWhatLatestNames) {
  const test::TempDir dir;
  for (std::int64_t step = 1; step <= 5; ++step) test::write_example(dir.path(), at_step(step));
  replace_text(posix_storage(), dir.path() / "latest", "global_step1");
  std::filesystem::create_directory(dir.path() / ("old.removed-" + std::string(32, '0')));
  EXPECT_EQ(plan_prune(posix_storage(), dir.path(), 2).removed,
            (std::vector<std::string>{"global_step2", "global_step3"}));
  EXPECT_EQ(prune(posix_storage(), dir.path(), 2).removed,
            (std::vector<std::string>{"global_step2", "global_step3"}));
  EXPECT_EQ(names(list_tags(posix_storage(), dir.path())),
            (std::vector<std::string>{"global_step1", "global_step4", "global_step5"}));
  EXPECT_FALSE(std::filesystem::exists(dir.path() / ("old.removed-" + std::string(32, '0'))));
  EXPECT_TRUE(prune(posix_storage(), dir.path(), 0).removed.empty());
}

TEST(Prune, KeepsWhatALinkNames) {
  const test::TempDir dir;
  for (std::int64_t step = 1; step <= 3; ++step) test::write_example(dir.path(), at_step(step));
  std::filesystem::create_directory_symlink("global_step1", dir.path() / "best");
  replace_text(posix_storage(), dir.path() / "latest", "best");
  const PruneResult plan = plan_prune(posix_storage(), dir.path(), 1);
  EXPECT_EQ(plan.removed, (std::vector<std::string>{"global_step2"}));
  ASSERT_EQ(plan.kept.size(), 1u);
  EXPECT_EQ(plan.kept[0].tag, "global_step1");
  EXPECT_THAT(plan.kept[0].reason, HasSubstr("\"best\" is a link to it"));
}

TEST(Prune, DamagedCheckpointsDoNotCountAsComplete) {
  const test::TempDir dir;
  for (std::int64_t step = 1; step <= 2; ++step) test::write_example(dir.path(), at_step(step));
  const Path manifest = dir.path() / "global_step2" / "manifest.json";
  write_file(manifest, read_file(manifest) + " ");
  std::filesystem::remove(dir.path() / "latest");
  EXPECT_TRUE(plan_prune(posix_storage(), dir.path(), 1).removed.empty())
      << "step 1 is the last complete one";
}

TEST(Commit, RetentionRunsAfterTheSave) {
  const test::TempDir dir;
  for (std::int64_t step = 1; step <= 4; ++step)
    test::write_example(dir.path(), at_step(step), posix_storage(), {.keep_last = 2});
  EXPECT_EQ(names(list_tags(posix_storage(), dir.path())),
            (std::vector<std::string>{"global_step3", "global_step4"}));
}

}  // namespace
}  // namespace unishard
