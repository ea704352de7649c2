#include "workflows/diff.hpp"

#include "unishard/converters/sink.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"
#include "views/diff_view.hpp"
#include "workflows/conversion_plan.hpp"

#include <gtest/gtest.h>

namespace unishard::tools {
namespace {

using converters::open_source;
using converters::Source;
using test::error_of;
using test::Fails;
using test::TempDir;
using test::write_example;

/// A source with one byte changed and no digests.
class Changed final : public Source {
 public:
  Changed(const Source& base, std::size_t tensor)
      : base_(base), catalog_(base.catalog()), tensor_(tensor) {
    for (TensorInfo& info : catalog_.tensors) info.crc64.reset();
  }
  std::string format() const override { return base_.format(); }
  const Catalog& catalog() const override { return catalog_; }
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    base_.read(tensor, range, out);
    if (tensor == tensor_ && range.begin == 0) out[0] ^= std::byte{1};
  }
  Catalog catalog_copy() const { return catalog_; }

 private:
  const Source& base_;
  Catalog catalog_;
  std::size_t tensor_;
};

class Diff : public testing::Test {
 protected:
  std::unique_ptr<Source> write(const char* name, const test::CheckpointSpec& spec) {
    write_example(folder_.path() / name, spec);
    return open_source(posix_storage(), folder_.path() / name);
  }
  /// The model of `source` as a safetensors file.
  std::unique_ptr<Source> write_model(const Source& source) {
    const ConversionPlan plan = plan_consolidate(source, {});
    const Path path = folder_.path() / "m.safetensors";
    const auto sink = converters::make_safetensors_sink(posix_storage(), path, plan.target, {});
    converters::copy({.source = &source, .target = &plan.target, .tensor_map = plan.tensor_map},
                     *sink, {});
    sink->commit();
    return open_source(posix_storage(), path);
  }
  const TempDir folder_;
};

TEST_F(Diff, AnyWorldSizeAndStageIsTheSameState) {
  const auto a = write("a", {.world_size = 3, .stage = 2});
  const auto b = write("b", {.world_size = 5, .stage = 3});
  const DiffReport report = diff(*a, *b, {});
  EXPECT_TRUE(report.same_state());
  EXPECT_EQ(report.bytes_read, 0u);
  EXPECT_EQ(report.by_digest, report.compared);
  EXPECT_EQ(report.identity_a, report.identity_b);
  EXPECT_EQ(report.information.size(), 2u) << "world size and stage";
}

TEST_F(Diff, NamesTheTensorAndTheElement) {
  const auto a = write("a", {});
  const Changed b(*a, 1);
  const DiffReport report = diff(*a, b, {});
  ASSERT_EQ(report.differences.size(), 1u);
  EXPECT_EQ(report.differences[0].tensor, a->catalog().tensors[1].label());
  EXPECT_EQ(report.differences[0].elements.differing, 1u);
  EXPECT_EQ(report.differences[0].elements.max_index, 0u);
  EXPECT_GT(report.bytes_read, 0u);
  const DiffReport tolerant = diff(*a, b, {.tolerance = 1e-3, .states = {}});
  EXPECT_TRUE(tolerant.same_state());
  EXPECT_EQ(tolerant.within_tolerance.size(), 1u);
}

TEST_F(Diff, AnotherSeedDiffersEverywhere) {
  const auto a = write("a", {.seed = 1});
  const auto b = write("b", {.seed = 2});
  const DiffReport report = diff(*a, *b, {});
  EXPECT_FALSE(report.same_state());
  const Json json = cli::diff_json(report);
  EXPECT_EQ(json.at("equal"), false);
  EXPECT_EQ(json.at("differences").size(), report.differences.size());
}

TEST_F(Diff, MissingTensorsAndOtherShapesAreDifferences) {
  const auto a = write("a", {});
  const auto b = write("b", {.bf16 = true});
  EXPECT_EQ(diff(*a, *b, {}).differences.at(0).kind, DiffKind::OnlyInB);
  EXPECT_EQ(diff(*b, *a, {}).differences.at(0).kind, DiffKind::OnlyInA);
  const auto c = write("c", {.scale = 2});
  EXPECT_EQ(diff(*a, *c, {}).differences.at(0).kind, DiffKind::Shape);
}

TEST_F(Diff, StatesRestrictTheComparison) {
  const auto a = write("a", {});
  const Changed b(*a, 1);  // an exp_avg
  EXPECT_TRUE(diff(*a, b, {.tolerance = {}, .states = {"fp32"}}).same_state());
  EXPECT_FALSE(diff(*a, b, {.tolerance = {}, .states = {"exp_avg"}}).same_state());
}

TEST_F(Diff, StatesThatNobodyHasAreNoEquality) {
  const auto a = write("a", {});
  const auto compare = [&](const Source& b, std::vector<std::string> states) {
    return error_of([&] { diff(*a, b, {.tolerance = {}, .states = std::move(states)}); });
  };
  EXPECT_THAT(compare(*a, {"fp32", "exp_agv"}),
              Fails(ErrorCode::InvalidArgument, testing::HasSubstr("\"exp_agv\""),
                    testing::HasSubstr("exp_avg, exp_avg_sq")));
  EXPECT_TRUE(diff(*a, *a, {.tolerance = {}, .states = {"fp32", "weights"}}).same_state());
  EXPECT_THAT(compare(*write_model(*a), {"exp_avg"}),
              Fails(ErrorCode::InvalidArgument, testing::HasSubstr("nothing to compare")));
}

TEST_F(Diff, ComparesWithSafetensors) {
  const auto a = write("a", {.bf16 = true});
  const auto b = write_model(*a);
  for (const DiffReport& report : {diff(*a, *b, {}), diff(*b, *a, {})}) {
    EXPECT_TRUE(report.same_state()) << cli::diff_text(report);
  }
}

}  // namespace
}  // namespace unishard::tools
