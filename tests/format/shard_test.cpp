#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/shard_reader.hpp"
#include "unishard/format/shard_writer.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <thread>
#include <tuple>

namespace unishard {
namespace {

using testing::HasSubstr;

const std::string kId = "00112233445566778899aabbccddeeff";

struct Piece {
  std::size_t fragment;
  ElementRange range;
};

std::vector<Piece> shuffled_pieces(const std::vector<Fragment>& fragments) {
  std::vector<Piece> pieces;
  std::mt19937 random(7);
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    const ElementRange whole = fragments[i].range;
    for (std::uint64_t at = whole.begin; at < whole.end;) {
      const std::uint64_t count = std::min<std::uint64_t>(whole.end - at, 1 + random() % 600'000);
      pieces.push_back({i, {at, at + count}});
      at += count;
    }
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  return pieces;
}

class ShardWriterInEveryMode : public testing::TestWithParam<const char*> {};

TEST_P(ShardWriterInEveryMode, TakesPiecesInAnyOrderFromAnyThread) {
  const test::TempDir dir;
  const Catalog catalog = test::example_catalog({.world_size = 1, .bf16 = true, .scale = 200});
  ShardWriter writer(posix_storage(), dir.path() / "s.h5", kId, catalog, 0, plan_shard(catalog, 0),
                     {.compression = compression_from_name(GetParam()).value()});
  const std::vector<Piece> pieces = shuffled_pieces(writer.fragments());
  std::vector<std::jthread> threads;
  for (std::size_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t p = t; p < pieces.size(); p += 3) {
        writer.write(pieces[p].fragment, pieces[p].range,
                     test::example_bytes(catalog, writer.fragments()[pieces[p].fragment].tensor, 1,
                                         pieces[p].range));
      }
    });
  }
  threads.clear();
  const ShardEntry entry = writer.finish();
  EXPECT_EQ(entry.bytes, std::filesystem::file_size(dir.path() / "s.h5"));
  const ShardReader reader(posix_storage(), dir.path() / "s.h5", entry, kId, catalog, kChunkBytes);
  for (std::size_t row = 0; row < reader.rows().size(); ++row) {
    const IndexRow& item = reader.rows()[row];
    const auto expected = test::example_bytes(catalog, item.tensor, 1, item.range);
    EXPECT_EQ(item.crc64, crc64(expected)) << catalog.tensors[item.tensor].label();
    if (item.data_set == kDerivedDataSet) continue;
    std::vector<std::byte> bytes(expected.size());
    reader.read(row, item.range, bytes);
    EXPECT_EQ(bytes, expected) << catalog.tensors[item.tensor].label();
  }
  std::uint64_t plain = 0;
  for (const DataSetEntry& set : entry.data_sets) plain += set.padded_bytes();
  const bool must_shrink = std::string_view(GetParam()).starts_with("zstd");
  EXPECT_LE(reader.stored_payload_bytes(), must_shrink ? plain * 9 / 10 : plain);
}
INSTANTIATE_TEST_SUITE_P(Modes, ShardWriterInEveryMode,
                         testing::Values("none", "zstd", "zstd:1", "zstd:9", "auto", "auto:3"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::ranges::replace(name, ':', '_');
                           return name;
                         });

TEST(ChunkBytes, AreSmallWhereThatKeepsTheTablesSmall) {
  Catalog catalog = test::example_catalog({});
  EXPECT_EQ(chunk_bytes_for(catalog, {}), kSmallChunkBytes);
  EXPECT_EQ(chunk_bytes_for(catalog, test::kZstd), kChunkBytes);
  EXPECT_EQ(chunk_bytes_for(catalog, {.mode = Compression::Mode::Auto}), kChunkBytes);
  catalog.tensors.front().shape = {std::uint64_t{1} << 36};
  EXPECT_EQ(chunk_bytes_for(catalog, {}), kChunkBytes);
}

TEST(ShardWriter, AbandonedWriterRemovesItsFile) {
  const test::TempDir dir;
  const Catalog catalog = test::example_catalog({.world_size = 1});
  {
    const ShardWriter writer(posix_storage(), dir.path() / "s.h5", kId, catalog, 0,
                             plan_shard(catalog, 0));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(ShardWriter, RefusesMissingAndRepeatedElements) {
  const test::TempDir dir;
  const Catalog catalog = test::example_catalog({.world_size = 1});
  ShardWriter writer(posix_storage(), dir.path() / "s.h5", kId, catalog, 0, plan_shard(catalog, 0));
  const auto bytes = test::example_bytes(catalog, 0, 1, {0, 100});
  writer.write(0, {0, 100}, bytes);
  EXPECT_THAT(test::error_of([&] { writer.finish(); }).what(),
              HasSubstr("wte.weight [fp32]: elements 100 to 2048 were not written"));
  writer.write(0, {0, 100}, bytes);
  EXPECT_THAT(test::error_of([&] { writer.finish(); }).what(),
              HasSubstr("elements 0 to 100 were written twice"));
  EXPECT_THAT(test::error_of([&] {
                writer.write(0, {0, 9999}, bytes);
              }).what(),
              HasSubstr("are not a part of the fragment"));
}

TEST(ShardWriter, SameStateGivesTheSameBytes) {
  const test::TempDir dir;
  const Catalog catalog = test::example_catalog({.world_size = 2});
  std::vector<std::string> files;
  for (const char* name : {"a.h5", "b.h5"}) {
    ShardWriter writer(posix_storage(), dir.path() / name, kId, catalog, 1, plan_shard(catalog, 1));
    for (std::size_t i = 0; i < writer.fragments().size(); ++i) {
      const Fragment& fragment = writer.fragments()[i];
      writer.write(i, fragment.range,
                   test::example_bytes(catalog, fragment.tensor, 1, fragment.range));
    }
    writer.finish();
    files.push_back(test::read_file(dir.path() / name));
  }
  EXPECT_TRUE(files[0] == files[1]);
}

class ShardReaderInEveryMode
    : public testing::TestWithParam<std::tuple<const char*, std::uint64_t>> {};

TEST_P(ShardReaderInEveryMode, ReadsAnyRange) {
  const test::TempDir dir;
  const Catalog catalog = test::example_catalog({.world_size = 1, .scale = 100});
  const auto [mode, chunk_bytes] = GetParam();
  ShardWriter writer(posix_storage(), dir.path() / "s.h5", kId, catalog, 0, plan_shard(catalog, 0),
                     {chunk_bytes, compression_from_name(mode).value()});
  for (std::size_t i = 0; i < writer.fragments().size(); ++i) {
    const Fragment& fragment = writer.fragments()[i];
    writer.write(i, fragment.range,
                 test::example_bytes(catalog, fragment.tensor, 1, fragment.range));
  }
  const ShardEntry entry = writer.finish();
  const ShardReader reader(posix_storage(), dir.path() / "s.h5", entry, kId, catalog, chunk_bytes);
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    const std::size_t row = random() % reader.rows().size();
    const ElementRange whole = reader.rows()[row].range;
    const std::uint64_t a = whole.begin + random() % (whole.size() + 1),
                        b = whole.begin + random() % (whole.size() + 1);
    const ElementRange range{std::min(a, b), std::max(a, b)};
    const auto expected = test::example_bytes(catalog, reader.rows()[row].tensor, 1, range);
    std::vector<std::byte> bytes(expected.size());
    reader.read(row, range, bytes);
    ASSERT_EQ(bytes, expected);
  }
}
INSTANTIATE_TEST_SUITE_P(Modes, ShardReaderInEveryMode,
                         testing::Combine(testing::Values("none", "zstd"),
                                          testing::Values(3 * kPayloadAlign, kSmallChunkBytes,
                                                          kChunkBytes)));

TEST(ShardEntry, SurvivesJson) {
  ShardEntry entry{"shard-00000-of-00001.h5",
                   0,
                   9000,
                   5,
                   4500,
                   2,
                   4600,
                   20,
                   {{"fp32", DType::Float32, 4096, 3, 4700}}};
  entry.bytes = 8192;
  EXPECT_EQ(shard_entry_from_json(to_json(entry), "x"), entry);
  Json escape = to_json(entry);
  escape["file"] = "../evil.h5";
  EXPECT_THAT(test::error_of([&] { shard_entry_from_json(escape, "m"); }).what(),
              HasSubstr("m.file: \"../evil.h5\" is not a plain file name"));
}

}  // namespace
}  // namespace unishard
