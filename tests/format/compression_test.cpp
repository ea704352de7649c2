// Compressed checkpoints: the codec, what a shard stores and gives back, and what damage is found.
#include "unishard/format/compression.hpp"

#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "codec/chunk_codec.hpp"
#include "expect_whole.hpp"
#include "forge_shard.hpp"
#include "make_checkpoint.hpp"
#include "shard/compression_gauge.hpp"
#include "shard/tables.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

namespace unishard {
namespace {

namespace fs = std::filesystem;
using test::damage_found;
using test::expect_whole;
using test::Fails;
using test::flip_bits;
using test::kZstd;
using test::read_file;

TEST(Compression, NamesAreReadStrictly) {
  EXPECT_EQ(compression_from_name("none"), Compression{});
  EXPECT_EQ(compression_from_name("zstd"), kZstd);
  EXPECT_EQ(compression_from_name("zstd:3"), (Compression{Compression::Mode::Zstd, 3}));
  EXPECT_EQ(compression_from_name("auto"), (Compression{Compression::Mode::Auto, 0}));
  EXPECT_EQ(compression_from_name("auto:19"), (Compression{Compression::Mode::Auto, 19}));
  for (const char* name : {"", "zst", "zstd:", "zstd:0", "zstd:20", "zstd:-1", "zstd:3x", "none:1",
                           "auto:99999999999", "ZSTD", "zstd:3:3"}) {
    EXPECT_EQ(compression_from_name(name), std::nullopt) << name;
  }
}

std::vector<std::byte> weights(std::size_t bytes, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<std::byte> out(bytes);
  for (std::size_t at = 0; at < bytes; at += sizeof(float)) {
    const float value = normal(random);
    std::memcpy(out.data() + at, &value, sizeof(value));
  }
  return out;
}

std::vector<std::byte> noise(std::size_t bytes) {
  std::mt19937_64 random(5);
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

TEST(ChunkCodec, GivesBackWhatItWasGiven) {
  detail::ChunkCodec codec;
  for (const std::size_t width : {1u, 2u, 4u, 8u, 16u}) {
    for (const int level : {0, 1, 3, 19}) {
      const auto chunk = weights(1 << 16, width);
      const auto stored = codec.encode(chunk, width, level);
      if (stored.empty()) {
        EXPECT_LT(width, 4u) << "planes of floats shrink";
        continue;
      }
      EXPECT_LT(stored.size(), chunk.size());
      EXPECT_EQ(stored.size() % kPayloadAlign, 0u);
      for (const std::size_t part : {chunk.size(), std::size_t{4096}, std::size_t{0}}) {
        std::vector<std::byte> out(part);
        EXPECT_TRUE(codec.decode(stored, chunk.size(), width, out));
        EXPECT_TRUE(std::ranges::equal(out, std::span(chunk).first(part))) << width;
      }
    }
  }
}

TEST(ChunkCodec, ShrinksTrainedNumbersAndLeavesNoise) {
  detail::ChunkCodec codec;
  const auto chunk = weights(1 << 20);
  EXPECT_LT(codec.encode(chunk, 4, 0).size(), chunk.size() * 88 / 100);
  EXPECT_TRUE(codec.encode(noise(1 << 20), 4, 0).empty());
  EXPECT_EQ(codec.encode(std::vector<std::byte>(1 << 20), 4, 0).size(), kPayloadAlign);
}

TEST(ChunkCodec, RefusesWhatIsNoChunk) {
  detail::ChunkCodec codec;
  const auto chunk = weights(1 << 16);
  const auto encoded = codec.encode(chunk, 4, 0);
  const std::vector<std::byte> stored(encoded.begin(), encoded.end());
  std::vector<std::byte> out(chunk.size());
  EXPECT_FALSE(codec.decode({}, chunk.size(), 4, out));
  EXPECT_FALSE(codec.decode(noise(8192), chunk.size(), 4, out));
  EXPECT_FALSE(codec.decode(stored, chunk.size() / 2, 4, std::span(out).first(chunk.size() / 2)))
      << "more than the chunk";
  EXPECT_FALSE(codec.decode(stored, chunk.size() * 2, 4, out)) << "less than the chunk";
  for (std::size_t cut = 0; cut < stored.size(); cut += 997)
    EXPECT_FALSE(codec.decode(std::span(stored).first(cut), chunk.size(), 4, out)) << cut;
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {  // must neither crash nor write beyond `out`
    auto changed = stored;
    changed[random() % (i < 1000 ? 64 : changed.size())] ^= std::byte(1 + random() % 255);
    codec.decode(changed, chunk.size(), 4, out);
  }
}

// Decides by what it was told: a byte costs `encode` seconds to encode, to 0.8 of itself, and
// `write` to write.
int encoded_of_1000(double encode, double write) {
  constexpr std::uint64_t kChunk = 1 << 20;
  detail::CompressionGauge gauge;
  int encoded = 0;
  for (int i = 0; i < 1000; ++i) {
    std::uint64_t stored = kChunk;
    if (gauge.pays()) {
      ++encoded;
      stored = kChunk * 8 / 10;
      gauge.encoded(encode * kChunk, kChunk, stored);
    }
    gauge.written(write * static_cast<double>(stored), stored);
  }
  return encoded;
}

TEST(CompressionGauge, EncodesWhileThatIsFaster) {
  EXPECT_EQ(encoded_of_1000(1e-9, 1e-8), 1000) << "a slow disk";
  EXPECT_LT(encoded_of_1000(1e-9, 1e-9), 20) << "a fast one: only to learn what it costs";
  EXPECT_EQ(encoded_of_1000(1.9e-9, 1e-8), 1000);
  EXPECT_LT(encoded_of_1000(2.1e-9, 1e-8), 20) << "saves 2e-9 a byte";
}

TEST(CompressionGauge, FollowsADiskThatBecomesSlow) {
  detail::CompressionGauge gauge;
  const auto learn = [&](double write) {
    int encoded = 0;
    for (int i = 0; i < 3000; ++i) {
      if (gauge.pays()) {
        ++encoded;
        gauge.encoded(1e-3, 1 << 20, 800'000);
      }
      gauge.written(write, 1 << 20);
    }
    return encoded;
  };
  EXPECT_LT(learn(1e-3), 100);
  EXPECT_GT(learn(1e-1), 2500);
  EXPECT_LT(learn(1e-4), 1500);
}

TEST(CompressionGauge, ALookLeavesTheFileEmpty) {
  const test::TempDir dir;
  const auto file = posix_storage().create(dir.path() / "f");
  detail::compression_may_pay(*file, 0);
  EXPECT_EQ(file->size(), 0u);
  file->close();
  EXPECT_EQ(fs::file_size(dir.path() / "f"), 0u);
}

class CompressedCheckpoint : public testing::Test {
 protected:
  Path write(const test::CheckpointSpec& spec) { return test::write_example(dir_.path(), spec); }

  test::TempDir dir_;
};

TEST_F(CompressedCheckpoint, HasTheSameIdentityAndLessBytes) {
  test::CheckpointSpec spec{.world_size = 2, .tag = "plain", .bf16 = true, .scale = 100};
  const Path plain = write(spec);
  spec.tag = "small";
  spec.compression = kZstd;
  const Path small = write(spec);
  expect_whole(small, spec);
  EXPECT_EQ(identity(CheckpointReader(posix_storage(), plain).catalog()),
            identity(CheckpointReader(posix_storage(), small).catalog()));
  for (const char* shard : {"shard-00000-of-00002.h5", "shard-00001-of-00002.h5"})
    EXPECT_LT(fs::file_size(small / shard), fs::file_size(plain / shard));
  EXPECT_NE(read_text(posix_storage(), small / kManifestFile, limits::kManifestBytes)
                .find("\"required_features\":[\"zstd\"]"),
            std::string::npos);
}

TEST_F(CompressedCheckpoint, SmallAndEmptyShardsWork) {
  const test::CheckpointSpec spec{.world_size = 40, .compression = kZstd};
  expect_whole(write(spec), spec);
}

const test::CheckpointSpec kForged{.world_size = 1, .scale = 60, .compression = kZstd};

// A data set whose chunks shrink.
const DataSetEntry& fp32_of(const ShardEntry& entry) {
  return *std::ranges::find(entry.data_sets, "fp32", &DataSetEntry::state);
}

TEST_F(CompressedCheckpoint, DamageNamesFileTensorAndBytes) {
  const Path tag = write(kForged);
  const CheckpointReader reader(posix_storage(), tag);
  const ShardEntry& entry = reader.manifest().shards.front();
  const ChunkRow row = test::chunk_row(read_file(tag / entry.file), fp32_of(entry), 0);
  flip_bits(tag / entry.file, row.file_offset + 100);
  EXPECT_THAT(damage_found(tag),
              Fails(ErrorCode::Corrupt, {entry.file, "bytes " + std::to_string(row.file_offset),
                                         "damaged ", "elements 0 to "}));
}

TEST_F(CompressedCheckpoint, HostileChunkRowsAreRefused) {
  struct Case {
    const char* name;
    std::function<void(ChunkRow&, const ShardEntry&)> edit;
    const char* word;
  };
  const std::vector<Case> cases = {
      {"beyond", [](ChunkRow& row, const ShardEntry& e) { row.file_offset = e.bytes; }, "end"},
      {"overflow", [](ChunkRow& row, const ShardEntry&) { row.file_offset = ~0ULL - 4095; }, ""},
      {"header", [](ChunkRow& row, const ShardEntry&) { row.file_offset = 0; }, "overlaps"},
      {"unaligned", [](ChunkRow& row, const ShardEntry&) { row.file_offset += 1; }, ""},
      {"empty", [](ChunkRow& row, const ShardEntry&) { row.stored_bytes = 0; }, "chunk 0"},
      {"short", [](ChunkRow& row, const ShardEntry&) { row.stored_bytes -= 4096; }, ""},
      {"mask", [](ChunkRow& row, const ShardEntry&) { row.filter_mask = 1; }, "chunk 0"},
      {"raw", [](ChunkRow& row, const ShardEntry&) { row.filter_mask = 3; }, "chunk 0"},
  };
  for (const Case& item : cases) {
    const test::TempDir dir;
    const Path tag = test::write_example(dir.path(), kForged);
    test::forge(tag, [&](std::string& bytes, ShardEntry& entry) {
      ChunkRow row = test::chunk_row(bytes, fp32_of(entry), 0);
      item.edit(row, entry);
      test::set_chunk_row(bytes, fp32_of(entry), 0, row);
    });
    EXPECT_THAT(damage_found(tag), Fails(ErrorCode::Corrupt, item.word)) << item.name;
  }
}

// A chunk that matches its checksum and is no zstd frame, or one of another size.
TEST_F(CompressedCheckpoint, AChunkThatCannotBeDecodedIsDamage) {
  const Path tag = write(kForged);
  test::forge(tag, [](std::string& bytes, ShardEntry& entry) {
    ChunkRow row = test::chunk_row(bytes, fp32_of(entry), 0);
    const auto chunk = std::as_writable_bytes(std::span(bytes)).subspan(row.file_offset);
    std::ranges::fill(chunk.first(row.stored_bytes), std::byte{0x5a});
    row.crc64 = crc64(chunk.first(row.stored_bytes));
    test::set_chunk_row(bytes, fp32_of(entry), 0, row);
  });
  EXPECT_THAT(damage_found(tag), Fails(ErrorCode::Corrupt, "damaged"));
}

TEST_F(CompressedCheckpoint, AnElementCountTheFileCannotHoldIsRefused) {
  const Path tag = write(kForged);
  test::edit_manifest(tag, [](Manifest& manifest) {
    manifest.shards.front().data_sets.back().elements = std::uint64_t{1} << 50;
  });
  EXPECT_THAT(damage_found(tag), Fails(ErrorCode::Corrupt, "ends beyond the file"));
}

TEST_F(CompressedCheckpoint, ChunksThatWouldFillTheMemoryAreRefused) {
  const Path tag = write(kForged);
  test::edit_manifest(tag, [](Manifest& manifest) {
    manifest.chunk_bytes = limits::kChunkBytesMax;
    for (DataSetEntry& set : manifest.shards.front().data_sets) set.elements = 1 << 28;
  });
  EXPECT_THAT(damage_found(tag), Fails(ErrorCode::Corrupt, "above the limit"));
}

}  // namespace
}  // namespace unishard
