// Files of every format version that was ever written stay readable, and today's writer reproduces
// today's version. tests/golden/README.md says how each was made.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/shard_writer.hpp"

#include "expect.hpp"
#include "expect_whole.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <filesystem>

namespace unishard {
namespace {

namespace fs = std::filesystem;
const fs::path kGolden = fs::path(UNISHARD_TEST_DATA) / "golden";
const test::CheckpointSpec kSpec{.world_size = 2, .stage = 2, .bf16 = true};

void expect_golden(const CheckpointReader& reader, const std::string& expected_identity,
                   const test::CheckpointSpec& spec = kSpec) {
  EXPECT_EQ(identity(reader.catalog()), expected_identity);
  EXPECT_EQ(reader.catalog().step, spec.step);
  test::expect_whole(reader, spec);
}

TEST(GoldenVersion1, IsReadableBitForBit) {
  const CheckpointReader reader(posix_storage(),
                                resolve_checkpoint(posix_storage(), kGolden / "v1", {}));
  expect_golden(reader, "155daf7beb4d0a3f");
}

TEST(GoldenVersion1, OfCompressedDataSetsIsReadableBitForBit) {
  const CheckpointReader reader(posix_storage(),
                                resolve_checkpoint(posix_storage(), kGolden / "v1-zstd", {}));
  expect_golden(reader, "9af5db786c9152ec");
  EXPECT_TRUE(reader.manifest().shards.front().data_sets.front().compressed);
}

TEST(GoldenVersion1, OfSharedChunksIsReadableBitForBit) {
  const CheckpointReader reader(posix_storage(),
                                resolve_checkpoint(posix_storage(), kGolden / "v1-shared", {}));
  expect_golden(reader, "783f46c5b25df943", {.step = 8, .changed = "ln_f.weight"});
  for (const auto& shard : reader.shards()) EXPECT_GT(shard->shared_payload_bytes(), 0u);
}

const test::CheckpointSpec kBoxes{.world_size = 2, .boxes = true};

TEST(GoldenVersion1, OfBoxesIsReadableBitForBit) {
  const CheckpointReader reader(posix_storage(),
                                resolve_checkpoint(posix_storage(), kGolden / "v1-boxes", {}));
  expect_golden(reader, "ab70c7d97d4925b2", kBoxes);
  for (const auto& shard : reader.shards()) EXPECT_GT(shard->entry().boxes_bytes, 0u);
}

// Everything but HDF5's own structures, whose bytes belong to the HDF5 library in use.
void expect_same_bytes(const fs::path& folder, const test::CheckpointSpec& spec) {
  const CheckpointReader golden(posix_storage(), folder / spec.tag);
  const test::TempDir dir;
  const Catalog catalog = test::example_catalog(spec);
  for (std::uint32_t rank = 0; rank < spec.world_size; ++rank) {
    const ShardEntry& expected = golden.manifest().shards[rank];
    ShardWriter writer(posix_storage(), dir.path() / expected.file, golden.manifest().save_id,
                       catalog, rank, test::example_fragments(catalog, rank, spec.boxes),
                       {.chunk_bytes = golden.manifest().chunk_bytes});
    for (std::size_t i = 0; i < writer.fragments().size(); ++i) {
      const Fragment& fragment = writer.fragments()[i];
      const ElementRange range = test::written_range(catalog, fragment);
      writer.write(i, range, test::example_bytes(catalog, fragment, spec.seed, range));
    }
    const ShardEntry entry = writer.finish();
    const std::string now = test::read_file(dir.path() / entry.file);
    const std::string then = test::read_file(golden.folder() / expected.file);
    EXPECT_EQ(now.substr(0, 4096), then.substr(0, 4096)) << "user block";
    ASSERT_EQ(entry.data_sets.size(), expected.data_sets.size());
    EXPECT_EQ(now.substr(entry.index_offset, entry.index_rows * 96),
              then.substr(expected.index_offset, expected.index_rows * 96));
    EXPECT_EQ(now.substr(entry.names_offset, entry.names_bytes),
              then.substr(expected.names_offset, expected.names_bytes));
    EXPECT_EQ(now.substr(entry.boxes_offset, entry.boxes_bytes),
              then.substr(expected.boxes_offset, expected.boxes_bytes));
    for (std::size_t i = 0; i < entry.data_sets.size(); ++i) {
      const DataSetEntry &a = entry.data_sets[i], &b = expected.data_sets[i];
      EXPECT_EQ(a.name(), b.name());
      EXPECT_EQ(now.substr(a.offset, a.padded_bytes()), then.substr(b.offset, b.padded_bytes()))
          << a.name();
    }
  }
}

TEST(GoldenVersion1, IsWhatTheWriterStillWrites) {
  expect_same_bytes(kGolden / "v1", kSpec);
  expect_same_bytes(kGolden / "v1-boxes", kBoxes);
}

}  // namespace
}  // namespace unishard
