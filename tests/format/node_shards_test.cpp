// The parts of a checkpoint that several nodes saved to their own disks, and what the tables of one
// shard are worth elsewhere.
#include "unishard/format/node_shards.hpp"

#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/file_excerpt.hpp"
#include "unishard/format/overlaid_storage.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <filesystem>

namespace unishard::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class NodeShards : public testing::Test {
 protected:
  void SetUp() override {
    tag_ = write_example(temp_.path() / "run", {.world_size = 3});
    const auto nodes = split_into_nodes(tag_, {"a", "b", "a"});
    a_ = nodes.at("a") / tag_.filename();
    b_ = nodes.at("b") / tag_.filename();
  }
  /// Opens shard `rank` of the part in `tag`.
  static std::vector<FileExcerpt> tables_of(const Path& tag, std::uint32_t rank) {
    const Manifest manifest = read_manifest(posix_storage(), tag);
    return excerpts_of(posix_storage(), tag, [&](Storage& storage) {
      const ShardEntry& entry = manifest.shards.at(rank);
      ShardReader(storage, tag / entry.file, entry, manifest.save_id, manifest.catalog,
                  manifest.chunk_bytes);
    });
  }

  const TempDir temp_;
  Path tag_, a_, b_;
};

TEST_F(NodeShards, AreListedWithTheNodesThatWroteThem) {
  const Manifest manifest = read_manifest(posix_storage(), a_);
  EXPECT_THAT(nodes_of(manifest.catalog), ElementsAre("a", "b", "a"));
  EXPECT_THAT(shards_here(posix_storage(), a_, manifest), ElementsAre(true, false, true));
  EXPECT_EQ(list_missing_shards(manifest, {true, false, true}),
            "shard-00001-of-00003.h5 (of node b)");
  EXPECT_EQ(list_missing_shards(manifest, {false, false, false}),
            "shard-00000-of-00003.h5 (of node a), shard-00001-of-00003.h5 (of node b), "
            "shard-00002-of-00003.h5 (of node a)");
}

TEST_F(NodeShards, IgnoresNamesThatAreNone) {
  Catalog catalog;
  catalog.world_size = 2;
  for (const Json& nodes : {Json("a"), Json({"a"}), Json({"a", 1}), Json()}) {
    catalog.producer = {{"nodes", nodes}};
    EXPECT_THAT(nodes_of(catalog), IsEmpty()) << nodes;
  }
  catalog.producer = "text";
  EXPECT_THAT(nodes_of(catalog), IsEmpty());
}

TEST_F(NodeShards, APartIsNoCheckpointForReaders) {
  EXPECT_THAT(error_of([&] { CheckpointReader(posix_storage(), a_); }),
              Fails(ErrorCode::NotFound, "shard-00001-of-00003.h5 (of node b)"));
  EXPECT_EQ(require_whole_part(posix_storage(), a_).shards.size(), 3u);
  std::filesystem::resize_file(b_ / "shard-00001-of-00003.h5", 100);
  EXPECT_THAT(error_of([&] { require_whole_part(posix_storage(), b_); }),
              Fails(ErrorCode::Corrupt, "truncated"));
  std::filesystem::remove(b_ / "shard-00001-of-00003.h5");
  EXPECT_THAT(error_of([&] { require_whole_part(posix_storage(), b_); }),
              Fails(ErrorCode::NotFound, "no shard is here"));
}

TEST_F(NodeShards, TablesOfAnotherNodeOpenTheCheckpointButNotItsBytes) {
  OverlaidStorage storage(posix_storage());
  for (FileExcerpt& each : decode_excerpts(encode_excerpts(tables_of(b_, 1))))
    add_excerpt(storage, a_, std::move(each));
  const CheckpointReader reader(storage, a_);
  std::size_t read = 0, refused = 0;
  for (std::size_t tensor = 0; tensor < reader.catalog().tensors.size(); ++tensor) {
    for (const auto& fragment : reader.fragments(tensor)) {
      std::vector<std::byte> bytes(fragment.range.size() *
                                   size_of(reader.catalog().tensors[tensor].dtype));
      const auto read_it = [&] { reader.read(tensor, fragment.range, bytes); };
      if (bytes.empty()) continue;
      if (fragment.shard == 1) {
        EXPECT_THAT(error_of(read_it), Fails(ErrorCode::Io, "the file is on another node"));
        ++refused;
      } else {
        read_it();
        ++read;
      }
    }
  }
  EXPECT_GT(read, 0u);
  EXPECT_GT(refused, 0u);
}

TEST(FileExcerpt, RefusesTextThatIsNone) {
  for (const std::string text : {"", "x", "\x81\x83"})
    EXPECT_THAT(error_of([&] { decode_excerpts(text); }), Fails(ErrorCode::Corrupt, "excerpt"));
}

TEST(OverlaidStorage, KnowsAddedFilesAndTheirFolders) {
  const TempDir temp;
  write_file(temp.path() / "below", "below");
  OverlaidStorage storage(posix_storage());
  const auto open = [&] { return posix_storage().open(temp.path() / "below"); };
  storage.add(temp.path() / "added", open);
  storage.add(temp.path() / "no/folder/file", open);
  EXPECT_EQ(storage.kind(temp.path() / "added"), EntryKind::File);
  EXPECT_EQ(storage.kind(temp.path() / "no/folder"), EntryKind::Directory);
  EXPECT_EQ(storage.kind(temp.path() / "nothing"), EntryKind::Missing);
  EXPECT_EQ(read_text(storage, temp.path() / "added", 10), "below");
  ASSERT_EQ(storage.list(temp.path()).size(), 2u);
  EXPECT_EQ(storage.list(temp.path())[0].name, "added");
  EXPECT_EQ(storage.list(temp.path() / "no/folder").size(), 1u);
}

}  // namespace
}  // namespace unishard::test
