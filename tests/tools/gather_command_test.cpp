// One checkpoint of those that nodes saved to their own disks.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/node_shards.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <filesystem>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class GatherCommand : public testing::Test {
 protected:
  void SetUp() override { save({.world_size = 4}); }

  void save(const CheckpointSpec& spec) {
    const Path tag = write_example(whole_, spec);
    identity_ = identity_of(tag);
    const auto nodes = split_into_nodes(tag, {"0 (a)", "0 (a)", "1 (b)", "1 (b)"});
    a_ = nodes.at("0 (a)");
    b_ = nodes.at("1 (b)");
  }
  ProcessResult gather(std::vector<std::string> words) const {
    words.insert(words.begin(), "gather");
    return unishard(words);
  }
  void expect_refused(const ProcessResult& result, int status, const char* words) const {
    EXPECT_EQ(result.status, status) << result.err;
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_THAT(result.err, HasSubstr("nothing was written"));
    EXPECT_FALSE(fs::exists(out_));
  }
  static Path shard(const Path& folder, int rank) {
    return folder / "global_step7" / shard_file_name(static_cast<std::uint32_t>(rank), 4);
  }

  const TempDir temp_;
  const Path whole_ = temp_.path() / "run";
  const std::string out_ = temp_.path() / "out";
  std::string a_, b_, identity_;
};

TEST_F(GatherCommand, MakesANormalCheckpointOfTheNodesFolders) {
  const ProcessResult done = gather({b_, a_ + "/global_step7", out_});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(identity_of(out_), identity_);
  const CheckpointReader reader(posix_storage(), Path(out_) / "global_step7");
  EXPECT_EQ(reader.catalog().world_size, 4u);
  EXPECT_THAT(nodes_of(reader.catalog()), IsEmpty());
  EXPECT_EQ(unishard({"verify", out_, "--deep"}).status, 0);
  EXPECT_EQ(gather({a_, b_, out_}).status, 3) << "it is there already";
}

TEST_F(GatherCommand, SaysWhichShardsAreMissingAndOfWhichNode) {
  expect_refused(gather({a_, out_}), 3,
                 "no folder has shard-00002-of-00004.h5, shard-00003-of-00004.h5 (of node 1 (b))");
  fs::remove(shard(a_, 1));
  expect_refused(gather({a_, b_, out_}), 3,
                 "no folder has shard-00001-of-00004.h5 (of node 0 (a))");
}

TEST_F(GatherCommand, RefusesPartsOfDifferentSaves) {
  const std::string old = temp_.path() / "old";
  fs::rename(b_, old);
  fs::remove_all(whole_);
  fs::remove_all(a_);
  save({.world_size = 4, .seed = 2});
  expect_refused(gather({a_, old, out_}), 2, "parts of different saves");
}

TEST_F(GatherCommand, RefusesManifestsOfOneSaveThatDiffer) {
  edit_manifest(Path(b_) / "global_step7", [](Manifest& manifest) { ++manifest.catalog.step; });
  expect_refused(gather({a_, b_, out_}), 4, "their manifests differ");
}

TEST_F(GatherCommand, TakesTheTagThatItIsTold) {
  replace_text(posix_storage(), Path(b_) / kLatestFile, "other\n");
  EXPECT_EQ(gather({a_, b_, out_}).status, 3);
  EXPECT_EQ(gather({"--tag", "global_step7", a_, b_, out_}).status, 0);
  EXPECT_EQ(identity_of(out_), identity_);
}

TEST_F(GatherCommand, ReadsAShardFromTheFolderInWhichItIsSound) {
  fs::copy_file(shard(a_, 0), shard(b_, 0));
  fs::resize_file(shard(a_, 0), 100);
  EXPECT_EQ(gather({a_, b_, out_}).status, 0);
  EXPECT_EQ(identity_of(out_), identity_);
}

TEST_F(GatherCommand, PublishesNothingOfADamagedShard) {
  std::uint64_t offset = 0;
  {
    const CheckpointReader reader(posix_storage(), whole_ / "global_step7");
    offset = reader.manifest().shards.at(2).data_sets.at(0).offset;
  }
  overwrite(shard(b_, 2), offset, "damage");
  const ProcessResult done = gather({a_, b_, out_});
  EXPECT_EQ(done.status, 4) << done.err;
  EXPECT_THAT(done.err, HasSubstr("shard-00002-of-00004.h5"));
  EXPECT_FALSE(fs::exists(Path(out_) / "global_step7"));
}

TEST_F(GatherCommand, PlansWithoutWriting) {
  const ProcessResult done = gather({"--dry-run", a_, b_, out_});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(GatherCommand, OtherVerbsNameItForThePartOfANode) {
  for (const char* verb : {"inspect", "verify"}) {
    const ProcessResult done = unishard({verb, a_});
    EXPECT_NE(done.status, 0) << verb;
    EXPECT_THAT(done.err + done.out, HasSubstr("unishard gather")) << verb;
  }
}

TEST_F(GatherCommand, RetentionCountsThePartsOfANode) {
  const Path next = write_example(whole_, {.world_size = 4, .step = 8, .tag = "global_step8"});
  split_into_nodes(next, {"0 (a)", "0 (a)", "1 (b)", "1 (b)"});
  EXPECT_THAT(prune(posix_storage(), a_, 1).removed, ElementsAre("global_step7"));
  EXPECT_FALSE(fs::exists(Path(a_) / "global_step7"));
  EXPECT_TRUE(fs::exists(Path(b_) / "global_step7"));
}

}  // namespace
}  // namespace unishard::test
