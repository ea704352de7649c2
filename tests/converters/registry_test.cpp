#include "unishard/converters/registry.hpp"

#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "fixtures.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unishard::converters {
namespace {

using test::TempDir;
using test::write_file;

Probe probe_path(const Path& path) { return probe(posix_storage(), path); }

TEST(Probe, KnowsNativeFoldersAndTags) {
  const TempDir temp;
  const Path tag = test::write_example(temp.path());
  EXPECT_EQ(probe_path(temp.path()).format, "native");
  EXPECT_EQ(probe_path(tag).format, "native");
}

TEST(Probe, RefusesAFolderWithCheckpointsOfTwoPrograms) {
  const TempDir temp;
  const Path tag = test::write_example(temp.path());
  write_file(temp.path() / ".metadata", "x");
  write_file(temp.path() / "__0_0.distcp", "x");
  const Probe found = probe_path(temp.path());
  EXPECT_EQ(found.format, "");
  EXPECT_NE(found.problem.find("name the folder of a tag"), std::string::npos) << found.problem;
  EXPECT_THAT(test::error_of([&] { open_source(posix_storage(), temp.path()); }),
              test::Fails(ErrorCode::Unsupported));
  EXPECT_EQ(probe_path(tag).format, "native");
  EXPECT_EQ(open_source(posix_storage(), temp.path(), tag.filename().string())->format(), "native");
}

TEST(Probe, RefusesAFolderThatAPlugInAndItsProgramHaveSavedTo) {
  for (const char* name : {"optimizer.pt", "optimizer.bin"}) {
    const TempDir temp;
    test::write_example(temp.path());
    EXPECT_EQ(probe_path(temp.path()).format, "native");
    write_file(temp.path() / name, "x");
    const Probe found = probe_path(temp.path());
    EXPECT_EQ(found.format, "");
    EXPECT_NE(found.problem.find("saved without UniShard"), std::string::npos) << found.problem;
  }
}

struct Row {
  std::string name;   ///< file to create, or empty
  std::string words;  ///< that the explanation must contain
};

TEST(Probe, ExplainsWhatItCannotRead) {
  const std::vector<Row> rows = {
      {"weights.pt", "name one of them"},
      {"global_step1.partial-0123456789abcdef0123456789abcdef/shard-00000-of-00001.h5",
       "interrupted"},
      {"shard-00000-of-00002.h5", "manifest"},
      {"checkpoints/checkpoint_3/x.txt", "checkpoints/checkpoint_3, the newest"},
      {"notes.txt", "holds no checkpoint"},
  };
  for (const Row& row : rows) {
    const TempDir temp;
    write_file(temp.path() / row.name, "x");
    const Probe found = probe_path(temp.path());
    EXPECT_EQ(found.format, "") << row.name;
    EXPECT_NE(found.problem.find(row.words), std::string::npos)
        << row.name << ": " << found.problem;
  }
}

TEST(Probe, ExplainsMissingAndEmpty) {
  const TempDir temp;
  EXPECT_NE(probe_path(temp.path() / "x").problem.find("does not exist"), std::string::npos);
  EXPECT_NE(probe_path(temp.path()).problem.find("empty folder"), std::string::npos);
  EXPECT_THAT(test::error_of([&] { open_source(posix_storage(), temp.path() / "x"); }),
              test::Fails(ErrorCode::NotFound));
}

TEST(Probe, KnowsTheFixturesOfOtherFormats) {
  SKIP_WITHOUT_FIXTURES();
  for (const Path& folder : test::fixture_cases("deepspeed", 44)) {
    const Probe found = probe_path(folder / "checkpoint");
    EXPECT_TRUE(found.format.starts_with("deepspeed")) << folder << ": " << found.problem;
  }
}

TEST(Probe, KnowsAnLfsPointer) {
  const TempDir temp;
  write_file(temp.path() / "model.pt", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_NE(probe_path(temp.path() / "model.pt").problem.find("git lfs pull"), std::string::npos);
}

TEST(Registry, SafetensorsHasNoTags) {
  SKIP_WITHOUT_FIXTURES();
  EXPECT_THROW(
      open_source(posix_storage(), test::fixtures() / "safetensors/st_single/checkpoint", "tag"),
      Error);
}

TEST(Registry, AnOptimizerOfAccelerateWithoutItsModelIsToldFromCheckpoints) {
  const test::TempDir folder;
  std::filesystem::copy(Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp",
                        folder.path() / "optimizer_0", std::filesystem::copy_options::recursive);
  EXPECT_THAT(probe(posix_storage(), folder.path()).problem,
              testing::HasSubstr("pytorch_model_fsdp_0, the folder of the model, is not there"));
}

TEST(Registry, ListsFormats) { EXPECT_EQ(known_formats().size(), 11u); }

}  // namespace
}  // namespace unishard::converters
