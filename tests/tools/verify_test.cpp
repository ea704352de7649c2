#include "workflows/verify/verify.hpp"

#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/memory.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"
#include "views/verify_view.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace unishard::tools {
namespace {

using test::error_of;
using test::Fails;
using test::flip_bits;
using test::TempDir;
using test::write_example;

class Verify : public testing::Test {
 protected:
  explicit Verify(bool boxes = false)
      : boxes_(boxes), tag_(write_example(folder_.path(), {.bf16 = true, .boxes = boxes})) {}

  VerifyReport check(bool deep = false, bool all = false) {
    return verify(posix_storage(), folder_.path(),
                  {.tag = {},
                   .all_tags = all,
                   .deep = deep,
                   .transfer = {.threads = 2, .buffer_bytes = 1 << 20}});
  }

  Path shard(int rank) const {
    return tag_ / ("shard-0000" + std::to_string(rank) + "-of-00003.h5");
  }

  std::vector<std::string> codes(const VerifyReport& report) const {
    std::vector<std::string> out;
    for (const Finding& finding : report.findings) out.push_back(finding.code);
    return out;
  }

  /// Elements of all tensors that the rank's shard holds.
  std::uint64_t elements_of(std::uint32_t rank) {
    std::uint64_t count = 0;
    const Catalog catalog = test::example_catalog({.bf16 = true});
    for (const Fragment& fragment : test::example_fragments(catalog, rank, boxes_))
      count += test::written_range(catalog, fragment).size();
    return count;
  }

  static std::uint64_t lost_elements(const Finding& finding) {
    std::uint64_t lost = 0;
    for (const LostRange& range : finding.lost) lost += range.elements;
    return lost;
  }

  void expect_that_every_flipped_byte_is_found() {
    const auto size = std::filesystem::file_size(shard(0));
    for (std::uint64_t offset = 0; offset < size; offset += size / 97) {
      flip_bits(shard(0), offset);
      EXPECT_FALSE(check(true).is_clean()) << "byte " << offset;
      flip_bits(shard(0), offset);
    }
    EXPECT_TRUE(check(true).is_clean());
  }

  const TempDir folder_;
  const bool boxes_;
  const Path tag_;
};

class VerifyBoxes : public Verify {
 protected:
  VerifyBoxes() : Verify(true) {}
};

using Codes = std::vector<std::string>;

/// Stops at the third report of progress.
class StopsSoon final : public Observer {
 public:
  void advance(std::uint64_t) override {
    if (++reports_ == 3) raise(ErrorCode::Cancelled, "stopped on request");
  }
  void begin(std::string_view, std::uint64_t) override {}
  void end() override {}

 private:
  int reports_ = 0;
};

TEST(VerifyForeign, OneLargeTensorIsStoppedBetweenBuffers) {
  const TempDir temp;
  const Path file = temp.path() / "x.safetensors";
  const std::string head = R"({"w":{"dtype":"U8","shape":[1048576],"data_offsets":[0,1048576]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(head.size());
  test::write_file(file, length + head + std::string(1 << 20, 'w'));
  StopsSoon observer;
  EXPECT_THAT(error_of([&] {
                verify(
                    posix_storage(), file,
                    {.tag = {},
                     .all_tags = false,
                     .deep = true,
                     .transfer = {.threads = 1, .buffer_bytes = 64 << 10, .observer = &observer}});
              }),
              Fails(ErrorCode::Cancelled));
}

TEST_F(Verify, SaysWhatItLeavesOutWhereAnotherProgramHasSaved) {
  test::write_file(folder_.path() / "optimizer.pt", "x");
  const VerifyReport report = check();
  EXPECT_TRUE(report.is_clean());
  EXPECT_THAT(report.notes, testing::Contains(testing::HasSubstr("saved without UniShard")));
}

TEST_F(Verify, ASoundCheckpointHasNoFindings) {
  for (const bool deep : {false, true}) {
    const VerifyReport report = check(deep);
    EXPECT_TRUE(report.is_clean()) << cli::verify_text(report).plain();
    ASSERT_EQ(report.checked.size(), 1u);
    EXPECT_EQ(report.checked[0].step, 7);
    EXPECT_EQ(report.checked[0].shards, 3u);
    EXPECT_TRUE(report.checked[0].identity);
    EXPECT_EQ(report.checked[0].bytes_checked > 0, deep);
  }
}

TEST_F(Verify, AMissingShardSaysExactlyWhatIsLost) {
  std::filesystem::remove(shard(1));
  const VerifyReport report = check();
  EXPECT_EQ(codes(report), Codes{"shard-missing"});
  EXPECT_EQ(lost_elements(report.findings.at(0)), elements_of(1));
  for (const LostRange& range : report.findings[0].lost)
    EXPECT_EQ(range.elements, range.range.size());
}

TEST_F(VerifyBoxes, SoundOnesPass) {
  EXPECT_TRUE(check().is_clean());
  EXPECT_TRUE(check(true).is_clean());
}

TEST_F(VerifyBoxes, AMissingShardSaysHowManyElementsAreLostAndWhere) {
  std::filesystem::remove(shard(1));
  const VerifyReport report = check(true);
  EXPECT_EQ(codes(report), Codes{"shard-missing"});
  EXPECT_EQ(lost_elements(report.findings.at(0)), elements_of(1));
  // [16:64, 10:21] of [64, 32], and the elements 170 to 341 in front of it.
  EXPECT_THAT(cli::verify_text(report).plain(),
              testing::HasSubstr("lost: wte.weight [fp32] 699 of the elements 170 to 2037"));
}

TEST_F(VerifyBoxes, EveryFlippedByteIsFound) { expect_that_every_flipped_byte_is_found(); }

TEST_F(VerifyBoxes, DeepSaysHowManyElementsOfAChunkAreDamaged) {
  std::uint64_t offset = 0, elements = 0;
  {
    const CheckpointReader reader(posix_storage(), tag_);
    const auto& sets = reader.manifest().shards[1].data_sets;
    const auto moments = std::ranges::find(sets, "exp_avg", &DataSetEntry::state);
    ASSERT_NE(moments, sets.end());
    offset = moments->offset;
    elements = moments->elements;
  }
  flip_bits(shard(1), offset + 8);
  const VerifyReport report = check(true);
  ASSERT_EQ(codes(report), Codes{"chunk-damaged"}) << cli::verify_text(report).plain();
  EXPECT_EQ(lost_elements(report.findings[0]), elements) << "the data set has one chunk";
  const Error error = error_of([&] {
    const CheckpointReader reader(posix_storage(), tag_);
    std::vector<std::byte> bytes(2048 * 4);
    reader.read(*reader.catalog().find("wte.weight", "exp_avg"), {0, 2048}, bytes);
  });
  EXPECT_THAT(error, Fails(ErrorCode::Corrupt, "528 of the elements 522 to 2037"));
}

TEST_F(Verify, SeveralBadShardsAreAllListed) {
  std::filesystem::remove(shard(0));
  std::filesystem::resize_file(shard(2), 5000);
  const VerifyReport report = check(true);
  EXPECT_EQ(codes(report), (Codes{"shard-missing", "shard-damaged", "elements-lost"}));
  EXPECT_EQ(lost_elements(report.findings.at(2)), elements_of(0) + elements_of(2));
}

TEST_F(Verify, DeepNamesTheDamagedElements) {
  std::uint64_t offset = 0;
  {
    const CheckpointReader reader(posix_storage(), tag_);
    offset = reader.manifest().shards[1].data_sets.at(0).offset;
  }
  flip_bits(shard(1), offset + 8);
  EXPECT_TRUE(check(false).is_clean());
  const VerifyReport report = check(true);
  ASSERT_EQ(codes(report), Codes{"chunk-damaged"}) << cli::verify_text(report).plain();
  const Finding& finding = report.findings[0];
  EXPECT_EQ(finding.path, shard(1));
  ASSERT_TRUE(finding.bytes);
  EXPECT_LE(finding.bytes->begin, offset + 8);
  EXPECT_GT(finding.bytes->end, offset + 8);
  EXPECT_FALSE(finding.lost.empty());
}

TEST_F(Verify, EveryFlippedByteIsFound) { expect_that_every_flipped_byte_is_found(); }

TEST_F(Verify, SwappedShardsAreFound) {
  std::filesystem::rename(shard(0), tag_ / "x");
  std::filesystem::rename(shard(1), shard(0));
  std::filesystem::rename(tag_ / "x", shard(1));
  const VerifyReport report = check();
  EXPECT_EQ(codes(report), (Codes{"shard-damaged", "shard-damaged", "elements-lost"}));
}

TEST_F(Verify, AShardOfAnotherSaveIsFound) {
  const TempDir other;
  const Path their_tag = write_example(other.path(), {.bf16 = true});
  std::filesystem::copy_file(their_tag / shard(1).filename(), shard(1),
                             std::filesystem::copy_options::overwrite_existing);
  const VerifyReport report = check();
  EXPECT_EQ(codes(report), Codes{"shard-damaged"});
}

TEST_F(Verify, AStrayShardIsAFindingAndAUsersFileIsANote) {
  test::write_file(tag_ / "notes.txt", "x");
  const VerifyReport sound = check();
  EXPECT_TRUE(sound.is_clean());
  ASSERT_EQ(sound.notes.size(), 1u);
  EXPECT_NE(sound.notes[0].find("notes.txt was not written by UniShard"), std::string::npos);
  test::write_file(tag_ / "shard-00007-of-00009.h5", "x");
  EXPECT_EQ(codes(check()), Codes{"stray-file"});
}

TEST_F(Verify, ADamagedManifestIsAFinding) {
  flip_bits(tag_ / kManifestFile, 300);
  EXPECT_EQ(codes(check()), Codes{"manifest-unreadable"});
  std::filesystem::remove(tag_ / kManifestFile);
  EXPECT_EQ(codes(verify(posix_storage(), tag_, {})), Codes{"manifest-missing"});
}

TEST_F(Verify, StatisticsThatAreNotTheShardsAreAFinding) {
  const auto change = [&](auto&& body) {
    test::edit_manifest(tag_, [&](Manifest& m) { body(*m.catalog.tensors[0].stats); });
    EXPECT_EQ(codes(check()), Codes{"statistics-differ"});
  };
  change([](Stats& stats) { stats.nan_count = 1; });
  change([](Stats& stats) { stats.nan_count = 0, stats.max += 1; });
}

TEST_F(Verify, MoreMemoryThanAllowedIsAnErrorAndNoFinding) {
  set_description_limit(64);
  EXPECT_THAT(error_of([&] { check(); }), Fails(ErrorCode::MemoryLimit));
  set_description_limit(~std::uint64_t{0});
}

TEST_F(Verify, AShardThatCannotBeOpenedIsAnErrorAndNoFinding) {
  std::filesystem::remove(shard(1));
  std::filesystem::create_symlink(shard(1).filename(), shard(1));  // a loop: opening fails
  EXPECT_THAT(error_of([&] { check(); }), Fails(ErrorCode::Io, "shard-00001-of-00003.h5"));
}

TEST_F(Verify, LatestThatNamesNothingIsAFinding) {
  test::write_file(folder_.path() / "latest", "global_step99");
  const VerifyReport report = check();
  EXPECT_EQ(codes(report), Codes{"latest-names-missing-tag"});
  EXPECT_EQ(report.checked.size(), 1u) << "the newest tag is checked all the same";
  test::write_file(folder_.path() / "latest", "../x");
  EXPECT_EQ(codes(check()), Codes{"latest-unreadable"});
}

TEST_F(Verify, AllChecksEveryTag) {
  write_example(folder_.path(), {.step = 9, .tag = "global_step9"});
  std::filesystem::remove(shard(2));
  EXPECT_TRUE(check().is_clean()) << "latest is sound";
  const VerifyReport report = check(false, true);
  EXPECT_EQ(report.checked.size(), 2u);
  EXPECT_EQ(codes(report), Codes{"shard-missing"});
}

TEST_F(Verify, ARenamedTagIsANoteOnly) {
  std::filesystem::rename(tag_, folder_.path() / "best");
  const VerifyReport report = verify(posix_storage(), folder_.path() / "best", {});
  EXPECT_TRUE(report.is_clean());
  EXPECT_EQ(report.notes.size(), 1u);
}

TEST_F(Verify, WhatIsNoCheckpointIsAnError) {
  const TempDir empty;
  EXPECT_THROW(verify(posix_storage(), empty.path(), {}), Error);
  EXPECT_THROW(verify(posix_storage(), empty.path() / "x", {}), Error);
}

TEST_F(Verify, JsonHasTheDocumentedKeys) {
  std::filesystem::remove(shard(1));
  const Json json = cli::verify_json(check());
  EXPECT_EQ(json.at("ok"), false);
  for (const char* key : {"deep", "checked", "findings", "notes"})
    EXPECT_TRUE(json.contains(key)) << key;
  for (const char* key : {"code", "path", "message", "hint", "bytes", "lost"}) {
    EXPECT_TRUE(json.at("findings").at(0).contains(key)) << key;
  }
}

}  // namespace
}  // namespace unishard::tools
