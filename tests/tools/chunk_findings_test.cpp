#include "workflows/verify/chunk_findings.hpp"

#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

namespace unishard::tools {
namespace {

class ChunkFindingsTest : public testing::Test {
 protected:
  ChunkFindingsTest()
      : reader_(posix_storage(), test::write_example(temp_.path(), {.world_size = 1})) {}

  const ShardReader& shard() const { return *reader_.shards().front(); }
  ChunkFindings decode(const std::string& text) const {
    return chunk_findings_from_json(Json::parse(text), shard(), reader_.catalog(), "here");
  }
  /// A sound row that is longer than `elements`.
  std::uint32_t long_row(std::uint64_t elements) const {
    std::uint32_t row = 0;
    while (shard().rows()[row].range.size() <= elements) ++row;
    return row;
  }

  const test::TempDir temp_;
  const CheckpointReader reader_;
};

TEST_F(ChunkFindingsTest, ArriveAsTheyWereSent) {
  const std::string text =
      R"([[[3,"fp32.float32",0,4096,100,[[0,5,9,4],[1,0,2,1]]]],[[0,0,4,18446744073709551615,7]]])";
  EXPECT_EQ(to_json(decode(text)).dump(), text);
  EXPECT_EQ(to_json(decode("[[],[]]")).dump(), "[[],[]]");
}

TEST_F(ChunkFindingsTest, OfSoundRowsNothingIsLeft) {
  const std::uint32_t number = long_row(10);
  const IndexRow& row = shard().rows()[number];
  ChunkFindings findings;
  const ElementRange whole{0, row.elements};
  findings.parts = {{number, whole, row.crc64}};
  findings.condense(shard(), reader_.catalog());
  EXPECT_TRUE(findings.parts.empty());
  findings.parts = {{number, whole, row.crc64 ^ 1}};
  std::vector<Finding> out;
  findings.report(shard(), reader_.catalog(), out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].code, "fragment-digest-differs");
}

TEST_F(ChunkFindingsTest, AContributionThatIsNotTheTablesIsReported) {
  const test::TempDir temp;
  const CheckpointReader boxes(posix_storage(), test::write_example(temp.path(), {.boxes = true}));
  const ShardReader& boxed = *boxes.shards().front();
  std::uint32_t number = 0;
  while (boxed.rows()[number].box == 0) ++number;
  const FragmentRow fragment = boxed.fragment(number);
  const ElementRange front{0, 4}, back{4, fragment.row->elements};
  ChunkFindings findings;
  // Contributions of parts add up by xor; the digest is that of the second part, as if the first
  // were empty text.
  findings.parts = {{number, front, 0, 5}, {number, back, fragment.row->crc64, 6}};
  findings.parts[1].contribution = fragment.contribution ^ 5;
  ChunkFindings sound = findings;
  sound.condense(boxed, boxes.catalog());
  EXPECT_TRUE(sound.parts.empty());
  findings.parts[0].contribution ^= 1;
  std::vector<Finding> out;
  findings.report(boxed, boxes.catalog(), out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].code, "fragment-digest-differs");
  EXPECT_THAT(out[0].message, testing::HasSubstr("the table of boxes says"));
}

TEST_F(ChunkFindingsTest, PartsOfTwoProcessesMakeARow) {
  const std::uint32_t number = long_row(10);
  const ElementRange whole{0, shard().rows()[number].elements};
  const ElementRange front{whole.begin, whole.begin + 4}, back{whole.begin + 4, whole.end};
  ChunkFindings one, other;
  one.parts = {{number, back, 1}};
  other.parts = {{number, front, 2}};
  std::vector<Finding> out;
  ChunkFindings alone = one;
  alone.report(shard(), reader_.catalog(), out);
  EXPECT_TRUE(out.empty()) << "the rest is damaged, which is said elsewhere";
  one.append(other);
  one.report(shard(), reader_.catalog(), out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].lost[0].range, shard().rows()[number].range);
}

TEST_F(ChunkFindingsTest, NonsenseIsRefused) {
  for (const char* text :
       {"{}", "[]", "[[]]", "[[],[],[]]", "[1,[]]", "[[],[[0,0,4]]]", "[[],[[0,4,4,1]]]",
        "[[],[[0,5,4,1]]]", "[[],[[99999999,0,4,1]]]", "[[],[[0,0,99999999999,1]]]",
        "[[],[[-1,0,4,1]]]", "[[],[[0,0,4,\"x\"]]]", R"([[[3,4,0,4096,100,[]]],[]])",
        R"([[[3,"x",0,18446744073709551615,100,[]]],[]])",
        R"([[[3,"x",0,0,1,[[99999999,0,1]]]],[]])", R"([[[3,"x",0,0,1,[[0,0,99999999999]]]],[]])",
        R"([[[3,"x",0,0,1,{}]],[]])", R"([[[3,"x",1,0,1,[]]],[]])"}) {
    EXPECT_THAT(test::error_of([&] { decode(text); }), test::Fails(ErrorCode::Corrupt)) << text;
  }
}

}  // namespace
}  // namespace unishard::tools
