// Checkpoints whose fragments are boxes: any mixture of ranges and boxes holds the same state, and
// tables that contradict each other are refused.
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/shard_base.hpp"
#include "unishard/format/shard_writer.hpp"

#include "base/little_endian.hpp"
#include "expect_whole.hpp"
#include "forge_shard.hpp"
#include "make_checkpoint.hpp"
#include "random_parts.hpp"
#include "shard/tables.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <thread>

namespace unishard {
namespace {

using test::error_of;
using test::Fails;

/// Tensors of random shapes, of which each rank holds random parts.
struct RandomState {
  Catalog catalog;
  std::vector<std::vector<Fragment>> ranks;
};

RandomState random_state(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  RandomState state;
  state.catalog.world_size = 1 + static_cast<std::uint32_t>(random() % 4);
  state.ranks.resize(state.catalog.world_size);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const DType dtype = std::array{DType::Float32, DType::BFloat16, DType::UInt8}[random() % 3];
    state.catalog.tensors.push_back(
        test::weight("w" + std::to_string(i), dtype, test::random_shape(random, 4, 9000)));
    for (Fragment& part : test::random_parts(random, i, state.catalog.tensors[i], random() % 12))
      state.ranks[random() % state.ranks.size()].push_back(std::move(part));
  }
  return state;
}

struct WrittenPart {
  std::size_t fragment = 0;
  ElementRange range;
};

/// Writes a rank's shard in pieces, in any order and from two threads.
ShardEntry write_shard(const RandomState& state, std::uint32_t rank, ShardWriter& writer,
                       std::mt19937_64& random) {
  std::vector<WrittenPart> pieces;
  for (std::size_t i = 0; i < writer.fragments().size(); ++i) {
    const ElementRange whole = test::written_range(state.catalog, state.ranks[rank][i]);
    for (std::uint64_t at = whole.begin; at < whole.end;) {
      const std::uint64_t end = at + 1 + random() % (whole.end - at);
      pieces.push_back({i, {at, end}});
      at = end;
    }
  }
  std::ranges::shuffle(pieces, random);
  std::vector<std::jthread> threads;
  for (std::size_t thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t i = thread; i < pieces.size(); i += 2) {
        const auto& [fragment, range] = pieces[i];
        writer.write(fragment, range,
                     test::example_bytes(state.catalog, state.ranks[rank][fragment], 1, range));
      }
    });
  }
  threads.clear();
  return writer.finish();
}

Path write_state(const Path& folder, const RandomState& state, std::uint64_t seed,
                 const std::string& tag, const Path& base) {
  std::mt19937_64 random(seed);
  const std::string id = new_save_id();
  const Compression compression = random() % 2 == 0 ? Compression{} : test::kZstd;
  SaveTransaction save(posix_storage(), folder, tag, id, {.chunk_bytes = 4096});
  std::vector<ShardEntry> entries;
  const std::uint32_t count = state.catalog.world_size;
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    const auto shared = base.empty()
                            ? nullptr
                            : std::make_shared<ShardBase>(posix_storage(), base, rank, count, 4096);
    ShardWriter writer(posix_storage(), save.staging() / shard_file_name(rank, count), id,
                       state.catalog, rank, state.ranks[rank], {4096, compression, shared});
    entries.push_back(write_shard(state, rank, writer, random));
  }
  save.complete(state.catalog, std::move(entries));
  save.publish();
  return folder / tag;
}

Box random_box(const Shape& shape, std::mt19937_64& random) {
  Box box;
  for (const std::uint64_t dimension : shape) {
    box.offsets.push_back(random() % dimension);
    box.sizes.push_back(1 + random() % (dimension - box.offsets.back()));
  }
  return box;
}

void expect_any_part(const CheckpointReader& reader, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < reader.catalog().tensors.size(); ++i) {
    const TensorInfo& tensor = reader.catalog().tensors[i];
    RC_ASSERT(tensor.crc64 == crc64(test::example_bytes(reader.catalog(), i, 1)));
    for (int part = 0; part < 5; ++part) {
      const std::uint64_t begin = random() % (tensor.elements() + 1);
      const ElementRange range{begin, begin + random() % (tensor.elements() + 1 - begin)};
      const auto expected = test::example_bytes(reader.catalog(), i, 1, range);
      std::vector<std::byte> bytes(expected.size());
      reader.read(i, range, bytes);
      RC_ASSERT(bytes == expected);

      const Fragment box =
          Fragment::of_box(static_cast<std::uint32_t>(i), tensor, random_box(tensor.shape, random));
      const auto expected_box =
          test::example_bytes(reader.catalog(), box, 1, test::written_range(reader.catalog(), box));
      bytes.assign(expected_box.size(), std::byte{});
      reader.read_box(i, *box.box, bytes);
      RC_ASSERT(bytes == expected_box);
    }
  }
}

RC_GTEST_PROP(Boxes, OfAnyPartitionReadBackInAnyPart, (std::uint64_t seed)) {
  const test::TempDir dir;
  const RandomState state = random_state(seed);
  const Path first = write_state(dir.path(), state, seed, "first", {});
  expect_any_part(CheckpointReader(posix_storage(), first), seed);
  // Once more over the first save: every chunk is shared.
  const Path second = write_state(dir.path(), state, seed, "second", first);
  const CheckpointReader reader(posix_storage(), second);
  for (const auto& shard : reader.shards())
    RC_ASSERT(shard->shared_payload_bytes() == shard->stored_payload_bytes());
  expect_any_part(reader, seed);
}

const test::CheckpointSpec kSpec{.world_size = 2, .bf16 = true, .boxes = true};

TEST(Boxes, HoldTheSameStateAsRanges) {
  const test::TempDir boxes, ranges;
  const CheckpointReader reader(posix_storage(), test::write_example(boxes.path(), kSpec));
  test::expect_whole(reader, kSpec);
  test::write_example(ranges.path(), {.world_size = 3, .bf16 = true});
  EXPECT_EQ(identity(reader.catalog()), test::identity_of(ranges.path()));
  EXPECT_THAT(test::read_file(reader.folder() / kManifestFile),
              testing::HasSubstr(R"("required_features":["boxes"])"));
}

/// A save of one matrix by one rank.
class BoxesOfAMatrix : public testing::Test {
 protected:
  Fragment box(Box box) const { return Fragment::of_box(0, catalog_.tensors[0], std::move(box)); }
  Path shard() const { return save_.staging() / shard_file_name(0, 1); }
  std::vector<std::byte> bytes(ElementRange range) const {
    return test::example_bytes(catalog_, std::size_t{0}, 1, range);
  }
  ShardWriter writer(std::vector<Fragment> fragments) const {
    return {posix_storage(), shard(), id_, catalog_, 0, std::move(fragments)};
  }

  const test::TempDir dir_;
  const Catalog catalog_ = [] {
    Catalog catalog;
    catalog.tensors = {test::weight("w", DType::Float32, {8, 4})};
    return catalog;
  }();
  const std::string id_ = new_save_id();
  SaveTransaction save_{posix_storage(), dir_.path(), "t", id_, {}};
};

TEST_F(BoxesOfAMatrix, ThatAreRangesAreStoredAsRanges) {
  ShardWriter shard = writer({{0, {0, 16}}, box({{4, 0}, {4, 4}})});
  shard.write(0, {0, 16}, bytes({0, 16}));
  EXPECT_THAT(error_of([&] {
                shard.write(1, {16, 32}, bytes({16, 32}));
              }),
              Fails(ErrorCode::InvalidArgument, "the fragment 0 to 16, counted within its box"));
  shard.write(1, {0, 16}, bytes({16, 32}));
  save_.complete(catalog_, {shard.finish()});
  save_.publish();
  EXPECT_THAT(test::read_file(dir_.path() / "t" / kManifestFile),
              testing::Not(testing::HasSubstr("boxes")));
  const CheckpointReader reader(posix_storage(), dir_.path() / "t");
  std::vector<std::byte> read(128);
  reader.read(0, {0, 32}, read);
  EXPECT_EQ(read, bytes({0, 32}));
}

TEST_F(BoxesOfAMatrix, ThatDoNotCoverItAreNotCommitted) {
  ShardWriter shard = writer({box({{0, 0}, {8, 3}})});
  shard.write(0, {0, 24}, std::vector<std::byte>(96));
  EXPECT_THAT(error_of([&] { save_.complete(catalog_, {shard.finish()}); }),
              Fails(ErrorCode::Internal, "element 3 is missing"));
}

TEST_F(BoxesOfAMatrix, OutsideOfItAreRefusedBeforeAFileIsMade) {
  const Fragment bad{0, {0, 32}, std::make_shared<const Box>(Box{{1, 0}, {8, 2}})};
  EXPECT_THAT(error_of([&] { writer({bad}); }),
              Fails(ErrorCode::InvalidArgument, "w [weights]: fragment [1:9, 0:2]"));
  EXPECT_FALSE(std::filesystem::exists(shard()));
}

/// Bytes that this process has read from files.
std::uint64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string name;
  std::uint64_t bytes = 0;
  file >> name >> bytes;
  return bytes;
}

// A matrix of 4096 x 4096 in eight column boxes, as tensor parallelism cuts it, read in pieces of 4
// MiB as a copy reads it.
TEST(Boxes, SideBySideAreReadAboutOnce) {
  const test::TempDir dir;
  RandomState state;
  state.catalog.world_size = 8;
  state.catalog.tensors = {test::weight("b", DType::Float32, {1000}),
                           test::weight("w", DType::Float32, {4096, 1024})};
  state.ranks.resize(8);
  for (std::uint64_t rank = 0; rank < 8; ++rank) {
    state.ranks[rank] = {
        {0, {rank * 125, rank * 125 + 125}},
        Fragment::of_box(1, state.catalog.tensors[1], {{0, rank * 128}, {4096, 128}})};
  }
  const CheckpointReader reader(posix_storage(), write_state(dir.path(), state, 2, "t", {}));
  const std::vector<Fragment> pieces =
      cut_fragments(reader.catalog(), std::vector<Fragment>{{1, {0, 4096 * 1024}}},
                    std::uint64_t{4} << 20, [&](std::uint32_t tensor, std::uint64_t element) {
                      return reader.chunk_start(tensor, element);
                    });
  const std::uint64_t before = bytes_read();
  for (const Fragment& piece : pieces) {
    std::vector<std::byte> bytes(piece.range.size() * 4);
    reader.read(1, piece.range, bytes);
    EXPECT_EQ(bytes, test::example_bytes(reader.catalog(), std::size_t{1}, 1, piece.range));
  }
  EXPECT_LT(bytes_read() - before, (std::uint64_t{16} << 20) * 11 / 10);
}

// Hostile tables. The example's first shard has boxes; every edit signs the tables again.

/// A row of the first shard's index, and the place of its box.
struct BoxPlace {
  std::size_t row_at = 0, words_at = 0;
  std::size_t axes = 2;
};

BoxPlace first_box(const std::string& bytes, const ShardEntry& entry) {
  for (std::size_t i = 0; i < entry.index_rows; ++i) {
    const std::size_t at = entry.index_offset + i * kIndexRowBytes;
    const IndexRow row =
        detail::decode_index_row(std::as_bytes(std::span(bytes)).subspan(at, kIndexRowBytes));
    if (row.box != 0) return {at, entry.boxes_offset + (row.box - 1) * 8};
  }
  return {};
}

void add(std::string& bytes, std::size_t at, std::uint64_t value) {
  const auto out = std::as_writable_bytes(std::span(bytes));
  detail::store(out, at, detail::load<std::uint64_t>(out, at) + value);
}

using Edit = std::function<void(std::string&, ShardEntry&, const BoxPlace&)>;

/// Adds `value` to a word of the first box: 0 is its contribution, 1 and 2 its offsets, 3 and 4 its
/// sizes.
Edit add_to_word(std::size_t word, std::uint64_t value) {
  return [=](std::string& bytes, ShardEntry&, const BoxPlace& place) {
    add(bytes, place.words_at + 8 * word, value);
  };
}

/// Adds `value` to the u64 at byte `field` of the row of the first box.
Edit add_to_row(std::size_t field, std::uint64_t value) {
  return [=](std::string& bytes, ShardEntry&, const BoxPlace& place) {
    add(bytes, place.row_at + field, value);
  };
}

Edit set_size(std::size_t axis, std::uint64_t size) {
  return [=](std::string& bytes, ShardEntry&, const BoxPlace& place) {
    detail::store(std::as_writable_bytes(std::span(bytes)), place.words_at + 8 * (3 + axis), size);
  };
}

Edit all_of(std::vector<Edit> edits) {
  return [edits = std::move(edits)](std::string& bytes, ShardEntry& entry, const BoxPlace& place) {
    for (const Edit& edit : edits) edit(bytes, entry, place);
  };
}

/// Adds `bytes` to the size of the table.
Edit add_to_table(std::int64_t bytes) {
  return [=](std::string&, ShardEntry& entry, const BoxPlace&) {
    entry.boxes_bytes += static_cast<std::uint64_t>(bytes);
  };
}

void drop_feature(std::string& bytes, ShardEntry&, const BoxPlace&) {
  const auto out = std::as_writable_bytes(std::span(bytes));
  detail::store(out, 12, std::uint32_t{0});
  detail::store(out, 4088, crc64(std::string_view(bytes).substr(0, 4088)));
}

struct Forgery {
  const char* name;
  Edit edit;
  const char* message;
};

class ForgedBoxes : public testing::TestWithParam<Forgery> {};

TEST_P(ForgedBoxes, AreRefused) {
  const test::TempDir dir;
  const Path tag = test::write_example(dir.path(), kSpec);
  test::forge(tag, [&](std::string& bytes, ShardEntry& entry) {
    GetParam().edit(bytes, entry, first_box(bytes, entry));
  });
  EXPECT_THAT(test::damage_found(tag), Fails(ErrorCode::Corrupt, GetParam().message));
}

// The row's field `box` is the upper half of the u64 at byte 48.
constexpr std::uint64_t kOneBox = std::uint64_t{1} << 32;

INSTANTIATE_TEST_SUITE_P(
    Shard, ForgedBoxes,
    testing::Values(
        Forgery{"OutsideOfTheShape", add_to_word(2, 40), "on axis 1, which has"},
        Forgery{"WithAnOverflowingOffset", add_to_word(1, ~std::uint64_t{0} - 20),
                "on axis 0, which has"},
        Forgery{"WithoutElements", set_size(1, 0), "no elements on axis 1"},
        Forgery{"ThatAreRanges", set_size(0, 1), "must be stored as one"},
        Forgery{"WithOtherBounds", add_to_row(8, 1), "are not the bounds of the box"},
        // One column to the right, which the next rank has too.
        Forgery{"ThatOverlap", all_of({add_to_word(2, 1), add_to_row(8, 1), add_to_row(16, 1)}),
                "is missing (the last wrong one is"},
        Forgery{"WithAnotherContribution", add_to_word(0, 1), "do not combine to the manifest's"},
        Forgery{"OutOfOrder", add_to_row(48, 5 * kOneBox), "does not follow the one before"},
        Forgery{"BeyondTheTable", add_to_row(48, 1'000'000 * kOneBox),
                "ends beyond the table of boxes"},
        Forgery{"ThatNoRowHas", add_to_table(8), "words of the table of boxes"},
        Forgery{"TooFew", add_to_table(-8), "ends beyond the table of boxes"},
        Forgery{"BeyondTheFile",
                [](std::string&, ShardEntry& entry, const BoxPlace&) {
                  entry.boxes_bytes = entry.bytes / 8 * 8;
                },
                "table boxes ends beyond the file"},
        Forgery{"WithoutTheFeature", drop_feature, "disagree on whether the shard has boxes"}),
    [](const auto& row) { return row.param.name; });

TEST(Boxes, OfMoreThanTheLimitAreRefusedInTheManifest) {
  const test::TempDir dir;
  const Path tag = test::write_example(dir.path(), kSpec);
  test::edit_manifest(
      tag, [](Manifest& manifest) { manifest.shards[0].boxes_bytes = std::uint64_t{1} << 40; });
  EXPECT_THAT(test::damage_found(tag), Fails(ErrorCode::Corrupt, "boxes_bytes"));
}

// Rows of a range whose reserved word is not 0 belong to no table of boxes.
TEST(Boxes, OfAShardWithoutThemAreRefused) {
  const test::TempDir dir;
  const Path tag = test::write_example(dir.path(), {.world_size = 2});
  test::forge(tag, [](std::string& bytes, ShardEntry& entry) {
    add(bytes, entry.index_offset + 48, kOneBox);
  });
  EXPECT_THAT(test::damage_found(tag), Fails(ErrorCode::Corrupt, "ends beyond the table of boxes"));
}

}  // namespace
}  // namespace unishard
