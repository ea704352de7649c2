// Incremental saves: what a shard finds in an earlier one it does not write, whoever is deleted
// afterwards, and what is wrong with a file of an earlier save is found.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/shard_base.hpp"

#include "expect_whole.hpp"
#include "forge_shard.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

namespace unishard {
namespace {

namespace fs = std::filesystem;
using test::damage_found;
using test::error_of;
using test::expect_whole;
using test::Fails;
using test::flip_bits;
using test::kZstd;

// Three states of 2.4 MiB or so in each of two shards: several chunks each.
test::CheckpointSpec example(std::string tag) {
  return {.world_size = 2, .tag = std::move(tag), .bf16 = true, .scale = 150};
}

class Sharing : public testing::Test {
 protected:
  Path write(const test::CheckpointSpec& spec) { return test::write_example(dir_.path(), spec); }
  /// The same state with one changed parameter, saved over `base`.
  Path write_over(const Path& base, test::CheckpointSpec spec,
                  std::string changed = "ln_f.weight") {
    spec.base = base;
    spec.changed = std::move(changed);
    return write(spec);
  }

  static std::vector<ShardEntry> entries(const Path& tag) {
    return CheckpointReader(posix_storage(), tag).manifest().shards;
  }
  static std::uint64_t own_bytes(const Path& tag) {
    std::uint64_t bytes = 0;
    for (const ShardEntry& entry : entries(tag)) bytes += entry.bytes;
    return bytes;
  }
  static std::uint64_t shared_bytes(const Path& tag) {
    const CheckpointReader reader(posix_storage(), tag);
    std::uint64_t bytes = 0;
    for (const auto& shard : reader.shards()) bytes += shard->shared_payload_bytes();
    return bytes;
  }
  /// Names of the files of earlier saves in the folder, and in the manifest.
  static std::set<std::string> bases_in(const Path& tag) {
    std::set<std::string> names;
    for (const Entry& entry : posix_storage().list(tag))
      if (entry.name.starts_with("base-")) names.insert(entry.name);
    return names;
  }
  static std::set<std::string> bases_of(const Path& tag) {
    std::set<std::string> names;
    for (const ShardEntry& entry : entries(tag))
      for (const BaseFile& base : entry.bases) names.insert(base.file);
    return names;
  }

  test::TempDir dir_;
};

TEST_F(Sharing, WritesOnlyTheChunksThatChanged) {
  const Path first = write(example("a"));
  const Path second = write_over(first, example("b"));
  test::CheckpointSpec changed = example("b");
  changed.changed = "ln_f.weight";
  expect_whole(second, changed);
  EXPECT_LT(own_bytes(second), own_bytes(first) / 2);
  EXPECT_GT(shared_bytes(second), own_bytes(first) / 2);
  EXPECT_EQ(bases_of(second).size(), 2u) << "one per rank";
  EXPECT_EQ(bases_in(second), bases_of(second));

  changed.tag = "whole";
  const CheckpointReader shared(posix_storage(), second), whole(posix_storage(), write(changed));
  EXPECT_EQ(identity(shared.catalog()), identity(whole.catalog()));
  for (std::size_t i = 0; i < whole.catalog().tensors.size(); ++i)
    EXPECT_EQ(shared.catalog().tensors[i].stats, whole.catalog().tensors[i].stats);
  EXPECT_NE(read_text(posix_storage(), second / kManifestFile, limits::kManifestBytes)
                .find("\"required_features\":[\"zstd\",\"shared\"]"),
            std::string::npos);
}

TEST_F(Sharing, AnUnchangedStateCostsItsTables) {
  const Path first = write(example("a"));
  const Path second = write_over(first, example("b"), "");
  expect_whole(second, example("b"));
  EXPECT_LT(own_bytes(second), std::uint64_t{2} * (128 << 10)) << "of two shards";
}

TEST_F(Sharing, OutlivesWhatItSharesWith) {
  const Path first = write(example("a"));
  const Path second = write_over(first, example("b"));
  fs::remove_all(first);
  test::CheckpointSpec changed = example("b");
  changed.changed = "ln_f.weight";
  expect_whole(second, changed);

  const Path third = write_over(second, example("c"));
  fs::remove_all(second);
  changed.tag = "c";
  expect_whole(third, changed);
  EXPECT_EQ(bases_of(third).size(), 3u) << "both first files, and the second of the changed rank";
  EXPECT_LT(own_bytes(third), std::uint64_t{2} * (128 << 10));
}

TEST_F(Sharing, ATagMayShareWithTheOneThatItReplaces) {
  const Path first = write(example("a"));
  const Path again = write_over(first, example("a"));
  ASSERT_EQ(first, again);
  test::CheckpointSpec changed = example("a");
  changed.changed = "ln_f.weight";
  expect_whole(again, changed);
  EXPECT_GT(shared_bytes(again), 0u);
}

TEST_F(Sharing, NothingInCommonLeavesNoLinks) {
  const Path first = write(example("a"));
  test::CheckpointSpec other = example("b");
  other.seed = 9;
  other.base = first;
  const Path second = write(other);
  expect_whole(second, other);
  const std::uint64_t own = own_bytes(second);
  EXPECT_GE(own, own_bytes(first) * 9 / 10);
  for (const ShardEntry& entry : entries(second))
    EXPECT_LE(entry.bases.size(), 1u) << "buffers and padding at most";
  EXPECT_EQ(bases_in(second), bases_of(second));
}

TEST_F(Sharing, CompressedAndPlainSavesFollowOnEachOther) {
  for (const Compression& before : {Compression{}, kZstd}) {
    for (const Compression& after : {Compression{}, kZstd}) {
      const test::TempDir dir;
      test::CheckpointSpec spec = example("a");
      spec.compression = before;
      spec.chunk_bytes = kChunkBytes;
      const Path first = test::write_example(dir.path(), spec);
      spec.tag = "b";
      spec.compression = after;
      spec.base = first;
      spec.changed = "ln_f.weight";
      const Path second = test::write_example(dir.path(), spec);
      expect_whole(second, spec);
      const bool must_encode_to_compare = before == kZstd && after != kZstd;
      if (!must_encode_to_compare) {
        EXPECT_LT(own_bytes(second), own_bytes(first) / 2);
      }
    }
  }
}

TEST_F(Sharing, AnotherWorldSizeOrChunkSizeIsRefusedAsABase) {
  const Path first = write(example("a"));
  const std::uint32_t ranks = example("a").world_size;
  for (const auto& [world_size, chunk_bytes] :
       {std::pair{ranks + 1, kSmallChunkBytes}, std::pair{ranks, kChunkBytes}}) {
    const auto open_base = [&, world_size = world_size, chunk_bytes = chunk_bytes] {
      const ShardBase base(posix_storage(), first, 0, world_size, chunk_bytes);
    };
    EXPECT_THAT(error_of(open_base), Fails(ErrorCode::Mismatch))
        << world_size << " " << chunk_bytes;
  }
}

TEST_F(Sharing, AWriterRefusesABaseOfAnotherChunkSize) {
  const test::CheckpointSpec spec{.world_size = 1, .scale = 60};
  const auto base =
      std::make_shared<ShardBase>(posix_storage(), write(spec), 0, 1, kSmallChunkBytes);
  const Catalog catalog = test::example_catalog(spec);
  EXPECT_THROW(ShardWriter(posix_storage(), dir_.path() / "shard.h5", new_save_id(), catalog, 0,
                           plan_shard(catalog, 0), {.chunk_bytes = kChunkBytes, .base = base}),
               Error);
  EXPECT_FALSE(fs::exists(dir_.path() / "shard.h5"));
}

// A base that goes away before its files have got their names is none.
TEST_F(Sharing, AVanishedBaseIsNotSharedWith) {
  const test::CheckpointSpec spec{.world_size = 1, .scale = 60};
  const Path first = write(spec);
  const auto base = std::make_shared<ShardBase>(posix_storage(), first, 0, 1, kSmallChunkBytes);
  fs::remove_all(first);
  const Catalog catalog = test::example_catalog(spec);
  ShardWriter writer(posix_storage(), dir_.path() / "shard.h5", new_save_id(), catalog, 0,
                     plan_shard(catalog, 0), {.chunk_bytes = base->chunk_bytes(), .base = base});
  for (std::size_t i = 0; i < writer.fragments().size(); ++i) {
    const Fragment& fragment = writer.fragments()[i];
    writer.write(i, fragment.range,
                 test::example_bytes(catalog, fragment.tensor, 1, fragment.range));
  }
  const ShardEntry entry = writer.finish();
  EXPECT_TRUE(entry.bases.empty());
  EXPECT_TRUE(std::ranges::none_of(entry.data_sets, &DataSetEntry::shared));
}

TEST_F(Sharing, AnAbandonedShardTakesItsLinksAlong) {
  const test::CheckpointSpec spec{.world_size = 1, .scale = 60};
  const Path first = write(spec), folder = dir_.path() / "new";
  fs::create_directory(folder);
  const Catalog catalog = test::example_catalog(spec);
  {
    const ShardWriter writer(
        posix_storage(), folder / "shard.h5", new_save_id(), catalog, 0, plan_shard(catalog, 0),
        {.chunk_bytes = kSmallChunkBytes,
         .base = std::make_shared<ShardBase>(posix_storage(), first, 0, 1, kSmallChunkBytes)});
    EXPECT_EQ(posix_storage().list(folder).size(), 2u);
  }
  EXPECT_EQ(posix_storage().list(folder).size(), 0u);
}

// Large files of which little is used are not carried along for ever.
TEST_F(Sharing, AFileThatIsMostlyUnusedIsDropped) {
  const Path first = write(example("a"));
  const Path second = write_over(first, example("b"));
  test::edit_manifest(second, [&](Manifest& manifest) {
    for (ShardEntry& entry : manifest.shards) {
      entry.bases.front().bytes = std::uint64_t{1} << 30;
      fs::resize_file(second / entry.bases.front().file, entry.bases.front().bytes);
    }
  });
  const Path third = write_over(second, example("c"));
  test::CheckpointSpec changed = example("c");
  changed.changed = "ln_f.weight";
  expect_whole(third, changed);
  for (const std::string& name : bases_of(third))
    EXPECT_LT(fs::file_size(third / name), std::uint64_t{1} << 29);
  EXPECT_GT(own_bytes(third), own_bytes(second));
}

TEST_F(Sharing, DamageInAFileOfAnEarlierSaveNamesIt) {
  const Path first = write(example("a"));
  const Path second = write_over(first, example("b"));
  const CheckpointReader reader(posix_storage(), second);
  const ShardReader& shard = *reader.shards().front();
  for (std::size_t set = 0; set < shard.entry().data_sets.size(); ++set) {
    for (const ChunkRow& row : shard.chunks(set)) {
      if (row.file == 0) continue;
      const Path file = second / shard.entry().bases.at(row.file - 1).file;
      flip_bits(file, row.file_offset + 5);
      EXPECT_THAT(damage_found(second),
                  Fails(ErrorCode::Corrupt,
                        {file.filename().string(), "bytes " + std::to_string(row.file_offset)}));
      EXPECT_NO_THROW(CheckpointReader(posix_storage(), first));
      return;
    }
  }
  FAIL() << "nothing is shared";
}

TEST_F(Sharing, AFileOfAnotherSaveInItsPlaceIsRefused) {
  struct Case {
    const char* name;
    std::function<void(const Path&)> spoil;
  };
  const std::vector<Case> cases = {
      {"missing", [](const Path& file) { fs::remove(file); }},
      {"truncated", [](const Path& file) { fs::resize_file(file, fs::file_size(file) - 4096); }},
      {"empty", [](const Path& file) { fs::resize_file(file, 0); }},
      {"a folder", [](const Path& file) { fs::remove(file), fs::create_directory(file); }},
      {"another shard",
       [](const Path& file) {
         const auto bytes = fs::file_size(file);
         fs::remove(file);
         fs::copy_file(file.parent_path() / "shard-00000-of-00002.h5", file);
         fs::resize_file(file, bytes);
       }},
  };
  for (const Case& item : cases) {
    const test::TempDir dir;
    test::CheckpointSpec spec = example("a");
    spec.base = test::write_example(dir.path(), spec);
    spec.tag = "b";
    spec.changed = "ln_f.weight";
    const Path second = test::write_example(dir.path(), spec);
    fs::remove_all(spec.base);
    const std::string name = *bases_in(second).begin();
    item.spoil(second / name);
    EXPECT_THAT(damage_found(second), Fails(ErrorCode::Corrupt, name)) << item.name;
  }
}

TEST_F(Sharing, HostileRowsAreRefused) {
  struct Case {
    const char* name;
    std::function<void(ChunkRow&, const ShardEntry&)> edit;
  };
  const std::vector<Case> cases = {
      {"no such file", [](ChunkRow& row, const ShardEntry&) { row.file = 2; }},
      {"far file", [](ChunkRow& row, const ShardEntry&) { row.file = ~0U; }},
      {"beyond",
       [](ChunkRow& row, const ShardEntry& e) { row.file_offset = e.bases.front().bytes; }},
      {"overflow", [](ChunkRow& row, const ShardEntry&) { row.file_offset = ~0ULL - 4095; }},
      {"header", [](ChunkRow& row, const ShardEntry&) { row.file_offset = 0; }},
      {"unaligned", [](ChunkRow& row, const ShardEntry&) { row.file_offset += 1; }},
      {"empty", [](ChunkRow& row, const ShardEntry&) { row.stored_bytes = 0; }},
      {"short", [](ChunkRow& row, const ShardEntry&) { row.stored_bytes -= 4096; }},
      {"huge", [](ChunkRow& row, const ShardEntry&) { row.stored_bytes = ~0U; }},
      {"mask", [](ChunkRow& row, const ShardEntry&) { row.filter_mask = 1; }},
  };
  for (const Case& item : cases) {
    const test::TempDir dir;
    test::CheckpointSpec spec{.world_size = 1, .scale = 60};
    spec.base = test::write_example(dir.path(), spec);
    spec.tag = "b";
    const Path second = test::write_example(dir.path(), spec);
    test::forge(second, [&](std::string& bytes, ShardEntry& entry) {
      const DataSetEntry& set = *std::ranges::find(entry.data_sets, "fp32", &DataSetEntry::state);
      ChunkRow row = test::chunk_row(bytes, set, 0);
      ASSERT_EQ(row.file, 1u);
      item.edit(row, entry);
      test::set_chunk_row(bytes, set, 0, row);
    });
    EXPECT_THAT(damage_found(second), Fails(ErrorCode::Corrupt)) << item.name;
  }
}

}  // namespace
}  // namespace unishard
