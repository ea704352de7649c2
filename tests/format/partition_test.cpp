#include "unishard/format/partition.hpp"

#include "make_checkpoint.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace unishard {
namespace {

TEST(FlatLayout, AlignsSlotsAndBlocks) {
  const std::vector<std::uint64_t> sizes{5, 16, 17};
  const FlatLayout layout = flat_layout(sizes);
  EXPECT_EQ(layout.slots[1].offset, 16u);
  EXPECT_EQ(layout.slots[2].offset, 32u);
  EXPECT_EQ(layout.length, 64u);
  EXPECT_EQ(layout.shard_length(3), 1024u);
  EXPECT_EQ(layout.owned(2, 0, 3), (ElementRange{0, 17}));
  EXPECT_TRUE(layout.owned(2, 1, 3).empty());
}

RC_GTEST_PROP(FlatLayout, EveryElementHasExactlyOneOwner, ()) {
  const auto sizes =
      *rc::gen::container<std::vector<std::uint64_t>>(rc::gen::inRange<std::uint64_t>(0, 5000));
  const auto world = *rc::gen::inRange<std::uint32_t>(1, 9);
  const FlatLayout layout = flat_layout(sizes);
  for (std::size_t slot = 0; slot < sizes.size(); ++slot) {
    std::uint64_t next = 0;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      const ElementRange range = layout.owned(slot, rank, world);
      if (range.empty()) continue;
      RC_ASSERT(range.begin == next);
      next = range.end;
    }
    RC_ASSERT(next == sizes[slot]);
  }
}

Catalog random_catalog() {
  Catalog catalog;
  catalog.world_size = *rc::gen::inRange<std::uint32_t>(1, 12);
  catalog.stage = *rc::gen::inRange<std::uint32_t>(0, 4);
  catalog.units = {{"a", {}}, {"b", {}}};
  const auto count = *rc::gen::inRange<std::size_t>(0, 12);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string fqn = "p" + std::to_string(i);
    const Shape shape{*rc::gen::inRange<std::uint64_t>(0, 300),
                      *rc::gen::inRange<std::uint64_t>(1, 40)};
    const int kind = *rc::gen::inRange(0, 3);
    for (const char* state : {"fp32", "exp_avg"})
      catalog.tensors.push_back({fqn, state, DType::Float32, shape, -1, false, false, {}, {}});
    if (kind < 2) catalog.units[static_cast<std::size_t>(kind)].fqns.push_back(fqn);
    const DType type = *rc::gen::element(DType::Int8, DType::BFloat16);
    const std::string frozen = "f" + std::to_string(i);
    catalog.tensors.push_back({frozen, "weights", type, shape, -1, true, false, {}, {}});
    if (kind > 0) catalog.units[static_cast<std::size_t>(kind - 1)].fqns.push_back(frozen);
    catalog.tensors.push_back({fqn, "step", DType::Int64, {}, -1, false, false, {}, {}});
  }
  return catalog;
}

RC_GTEST_PROP(PlanShard, EveryElementIsWrittenExactlyOnce, ()) {
  const Catalog catalog = random_catalog();
  std::vector<std::vector<ElementRange>> written(catalog.tensors.size());
  for (std::uint32_t rank = 0; rank < catalog.world_size; ++rank) {
    const auto fragments = plan_shard(catalog, rank);
    RC_ASSERT(std::is_sorted(
        fragments.begin(), fragments.end(), [](const Fragment& a, const Fragment& b) {
          return std::pair(a.tensor, a.range.begin) < std::pair(b.tensor, b.range.begin);
        }));
    for (const Fragment& fragment : fragments) {
      RC_ASSERT(!fragment.range.empty());
      written[fragment.tensor].push_back(fragment.range);
    }
  }
  for (std::size_t i = 0; i < written.size(); ++i) {
    std::sort(written[i].begin(), written[i].end());
    std::uint64_t next = 0;
    for (const ElementRange& range : written[i]) {
      RC_ASSERT(range.begin == next);
      next = range.end;
    }
    RC_ASSERT(next == catalog.tensors[i].elements());
  }
}

TEST(PlanShard, SpreadsReplicatedDataByBytes) {
  Catalog catalog;
  catalog.stage = 0;
  catalog.world_size = 4;
  catalog.tensors = {{"w", "fp32", DType::Float32, {1'000'000}, -1, false, false, {}, {}},
                     {"v", "fp32", DType::Float32, {3'000'000}, -1, false, false, {}, {}}};
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    std::uint64_t bytes = 0;
    for (const Fragment& fragment : plan_shard(catalog, rank)) bytes += fragment.range.size() * 4;
    EXPECT_NEAR(static_cast<double>(bytes), 4e6, 8192);
  }
}

// The trained parameters of a unit are cut as if it had no frozen ones.
TEST(PlanShard, FrozenParametersAreCutByTypeAtStage3) {
  Catalog catalog;
  catalog.world_size = 2;
  catalog.units = {{"u", {"t", "bytes", "a", "b"}}};
  catalog.tensors = {{"t", "fp32", DType::Float32, {3000}, -1, false, false, {}, {}},
                     {"bytes", "weights", DType::Int8, {2500}, -1, true, false, {}, {}},
                     {"a", "weights", DType::BFloat16, {1000}, -1, true, false, {}, {}},
                     {"b", "weights", DType::BFloat16, {3000}, -1, true, false, {}, {}}};
  catalog.stage = 3;
  EXPECT_EQ(
      plan_shard(catalog, 0),
      (std::vector<Fragment>{{0, {0, 2048}}, {1, {0, 2048}}, {2, {0, 1000}}, {3, {0, 1040}}}));
  EXPECT_EQ(plan_shard(catalog, 1),
            (std::vector<Fragment>{{0, {2048, 3000}}, {1, {2048, 2500}}, {3, {1040, 3000}}}));
  catalog.stage = 2;
  EXPECT_EQ(plan_shard(catalog, 0),
            (std::vector<Fragment>{{0, {0, 2048}}, {1, {0, 2500}}, {2, {0, 1000}}}));
}

TEST(PlanShard, StatesOfAParameterAreCutAlike) {
  const Catalog catalog =
      test::example_catalog({.world_size = 4, .stage = 2, .bf16 = true, .scale = 3});
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    ElementRange fp32;
    for (const Fragment& fragment : plan_shard(catalog, rank)) {
      const TensorInfo& tensor = catalog.tensors[fragment.tensor];
      if (tensor.fqn != "h.0.attn.weight") continue;
      if (tensor.state == "fp32") fp32 = fragment.range;
      EXPECT_EQ(fragment.range, fp32) << tensor.label();
    }
  }
}

}  // namespace
}  // namespace unishard
