#include "unishard/format/error.hpp"

#include "make_checkpoint.hpp"
#include "support/machine.hpp"
#include "temp_dir.hpp"
#include "views/inspect_view.hpp"
#include "views/reshard_view.hpp"
#include "workflows/conversion_plan.hpp"
#include "workflows/inspect.hpp"
#include "workflows/reshard.hpp"

#include <gtest/gtest.h>

namespace unishard::tools {
namespace {

using test::TempDir;
using test::write_example;

class Plans : public testing::Test {
 protected:
  void SetUp() override { tag_ = write_example(folder_.path(), {.bf16 = true}); }
  const TempDir folder_;
  Path tag_;
};

DType dtype_of(const ConversionPlan& plan, std::string_view fqn) {
  return plan.target.tensors.at(plan.target.find(fqn, state::kWeights).value()).dtype;
}

TEST_F(Plans, ConsolidateFollowsDeepSpeed) {
  const auto source = converters::open_source(posix_storage(), folder_.path());
  const ConversionPlan plan = plan_consolidate(*source, {});
  EXPECT_EQ(dtype_of(plan, "wte.weight"), DType::Float32);
  EXPECT_EQ(dtype_of(plan, "adapter.frozen"), DType::BFloat16);
  EXPECT_EQ(dtype_of(plan, "h.0.counter"), DType::Int64);
  EXPECT_FALSE(plan.target.find("lm_head.weight", state::kWeights));
  EXPECT_EQ(plan.target.aliases, (std::vector<Alias>{{"lm_head.weight", "wte.weight"}}));
  for (std::size_t i = 0; i < plan.target.tensors.size(); ++i) {
    const TensorInfo& from = source->catalog().tensors[plan.tensor_map[i]];
    EXPECT_EQ(from.fqn, plan.target.tensors[i].fqn);
    EXPECT_TRUE(from.state == "fp32" || from.frozen || from.state == "buffer") << from.label();
  }
}

TEST_F(Plans, ConsolidateToAnotherTypeAndWithoutFrozen) {
  const auto source = converters::open_source(posix_storage(), folder_.path());
  const ConversionPlan plan =
      plan_consolidate(*source, {.dtype = DType::Float16, .exclude_frozen = true});
  EXPECT_EQ(dtype_of(plan, "wte.weight"), DType::Float16);
  EXPECT_EQ(dtype_of(plan, "h.0.counter"), DType::Int64)
      << "a counter must not be rounded to 16 bits";
  EXPECT_FALSE(plan.target.find("adapter.frozen", state::kWeights));
  EXPECT_EQ(plan.frozen_left_out, 1u);
}

TEST_F(Plans, ConvertListsTheParametersOfGroupsInTheirOrder) {
  const auto source = converters::open_source(posix_storage(), folder_.path());
  const ConversionPlan plan = plan_convert(*source, {});
  ASSERT_FALSE(source->catalog().groups[0].contains("params"));
  std::vector<std::string> expected;
  for (const TensorInfo& tensor : source->catalog().tensors) {
    if (tensor.group == 0 && std::ranges::count(expected, tensor.fqn) == 0)
      expected.push_back(tensor.fqn);
  }
  EXPECT_EQ(plan.target.groups[0]["params"], Json(expected));
}

TEST_F(Plans, ReshardPlanNamesSourcesAndBytes) {
  const CheckpointReader source(posix_storage(), tag_);
  const ReshardPlan plan = plan_reshard(source, {.world_size = 2, .stage = {}});
  ASSERT_EQ(plan.shards.size(), 2u);
  EXPECT_EQ(plan.payload_bytes, source.catalog().stored_bytes());
  EXPECT_EQ(plan.shards[0].source_shards.front(), 0u);
  EXPECT_EQ(plan.shards[1].source_shards.back(), 2u);
  EXPECT_EQ(plan.target.stage, 2u);
  EXPECT_EQ(identity(plan.target), identity(source.catalog()));
  EXPECT_NE(cli::reshard_text(plan, {}).find("shard-00001-of-00002.h5"), std::string::npos);
  EXPECT_EQ(cli::reshard_json(plan, {}).at("shards").size(), 2u);
  EXPECT_THROW(plan_reshard(source, {.world_size = 0, .stage = {}}), Error);
  EXPECT_THROW(plan_reshard(source, {.world_size = 1, .stage = 4}), Error);
}

TEST_F(Plans, DescribeHasTheDocumentedJson) {
  const Description description = describe(posix_storage(), folder_.path(), {}, {.layout = true});
  const cli::InspectView view{
      .filter = {}, .sort = cli::SortBy::Model, .stats = true, .layout = true};
  const Json json = cli::inspect_json(description, view);
  for (const char* key : {"format", "path", "tag", "step", "world_size", "stage", "identity",
                          "saved_unix_seconds", "parameters", "bytes", "latest", "tags", "shards",
                          "tensors", "aliases", "groups", "producer", "compression"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json.at("latest"), "global_step7");
  const Json& tensor = json.at("tensors").at(0);
  for (const char* key : {"name", "state", "dtype", "shape", "elements", "bytes", "group", "frozen",
                          "derived", "crc64", "stats", "layout"}) {
    EXPECT_TRUE(tensor.contains(key)) << key;
  }
  EXPECT_EQ(tensor.at("crc64").get<std::string>().size(), 16u);
  EXPECT_EQ(tensor.at("stats").at("nan"), 0);
}

TEST_F(Plans, InspectFiltersSortsAndDraws) {
  const Description description = describe(posix_storage(), tag_, {}, {.layout = true});
  cli::InspectView view{
      .filter = "h.0.*", .sort = cli::SortBy::Bytes, .stats = true, .layout = true, .width = 80};
  const std::string text = cli::inspect_text(description, view);
  EXPECT_EQ(text.find("wte.weight  "), std::string::npos);
  EXPECT_LT(text.find("h.0.attn.weight"), text.find("h.0.scale"));
  const std::string layout = cli::layout_text(description, view);
  EXPECT_NE(layout.find("|000"), std::string::npos) << layout;
  EXPECT_NE(cli::tags_text(description).find("global_step7"), std::string::npos);
}

TEST(Machine, KnowsFreeSpaceOfPathsThatAreNotThere) {
  const TempDir temp;
  EXPECT_GT(free_bytes(temp.path() / "a/b/c"), 0u);
  EXPECT_THROW(require_space(temp.path() / "x", ~std::uint64_t{0}), Error);
}

}  // namespace
}  // namespace unishard::tools
