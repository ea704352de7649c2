#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

namespace unishard {
namespace {

struct Topology {
  std::uint32_t world_size, stage;
};
class AnyTopology : public testing::TestWithParam<Topology> {};

TEST_P(AnyTopology, ReadsBackEveryElementAndHasTheSameIdentity) {
  const test::TempDir dir;
  const test::CheckpointSpec spec{
      .world_size = GetParam().world_size, .stage = GetParam().stage, .bf16 = true, .scale = 3};
  const CheckpointReader reader(posix_storage(), test::write_example(dir.path(), spec));
  EXPECT_EQ(reader.shards().size(), spec.world_size);
  for (std::size_t i = 0; i < reader.catalog().tensors.size(); ++i) {
    const TensorInfo& tensor = reader.catalog().tensors[i];
    const auto expected = test::example_bytes(reader.catalog(), i, spec.seed);
    std::vector<std::byte> bytes(expected.size());
    reader.read(i, {0, tensor.elements()}, bytes);
    EXPECT_EQ(bytes, expected) << tensor.label();
    EXPECT_EQ(tensor.crc64, crc64(expected)) << tensor.label();
    EXPECT_EQ(tensor.stats.value_or(Stats{}).nan_count, 0u);  // integers have none
  }
  const test::TempDir other;
  const CheckpointReader single(
      posix_storage(),
      test::write_example(other.path(), {.world_size = 1, .stage = 0, .bf16 = true, .scale = 3}));
  EXPECT_EQ(identity(reader.catalog()), identity(single.catalog()));
}

INSTANTIATE_TEST_SUITE_P(All, AnyTopology,
                         testing::Values(Topology{1, 0}, Topology{3, 0}, Topology{2, 1},
                                         Topology{5, 2}, Topology{4, 3}, Topology{13, 3}),
                         [](const auto& row) {
                           return "W" + std::to_string(row.param.world_size) + "Stage" +
                                  std::to_string(row.param.stage);
                         });

TEST(CheckpointReader, ReadsRangesAcrossFragments) {
  const test::TempDir dir;
  const CheckpointReader reader(
      posix_storage(),
      test::write_example(dir.path(), {.world_size = 5, .stage = 3, .bf16 = true, .scale = 8}));
  for (const char* state : {"fp32", "weights"}) {
    const std::size_t tensor = *reader.catalog().find("h.0.attn.weight", state);
    EXPECT_GT(reader.fragments(tensor).size(), 2u);
    for (const ElementRange range : {ElementRange{0, 0}, ElementRange{1, 2},
                                     ElementRange{4000, 12'001}, ElementRange{1023, 24'575}}) {
      const auto expected = test::example_bytes(reader.catalog(), tensor, 1, range);
      std::vector<std::byte> bytes(expected.size());
      reader.read(tensor, range, bytes);
      EXPECT_EQ(bytes, expected) << state << range.begin;
    }
  }
  EXPECT_THROW(reader.read(0, {0, 1}, {}), Error);
}

TEST(CommitSave, PublishesNothingOfAnotherIdentityThanTheExpectedOne) {
  const test::TempDir dir;
  EXPECT_THAT(test::error_of([&] {
                test::write_example(dir.path(), {}, posix_storage(),
                                    {.identity = "0123456789abcdef"});
              }),
              test::Fails(ErrorCode::Corrupt, "the source has 0123456789abcdef"));
  EXPECT_TRUE(list_tags(posix_storage(), dir.path()).empty());
}

TEST(CheckpointReader, CarriesEverythingBesideTheBytes) {
  const test::TempDir dir;
  const CheckpointReader reader(posix_storage(), test::write_example(dir.path()));
  const Catalog expected = test::example_catalog({});
  EXPECT_EQ(reader.catalog().step, 7);
  EXPECT_EQ(reader.catalog().groups, expected.groups);
  EXPECT_EQ(reader.catalog().rng, expected.rng);
  EXPECT_EQ(reader.catalog().data_position, expected.data_position);
  EXPECT_EQ(reader.catalog().aliases, expected.aliases);
  EXPECT_EQ(reader.catalog().units, expected.units);
  EXPECT_TRUE(reader.catalog().config.is_null());
}

}  // namespace
}  // namespace unishard
