// Training states in one torch.save file, written by torch 2.15.
#include "unishard/converters/registry.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "read_source.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace unishard::converters {
namespace {

const Path kFiles = Path(UNISHARD_TEST_DATA) / "golden/torch";

/// "fqn state" of each tensor.
std::vector<std::string> labels(const Catalog& catalog) {
  std::vector<std::string> out;
  for (const TensorInfo& tensor : catalog.tensors) out.push_back(tensor.fqn + ' ' + tensor.state);
  std::ranges::sort(out);
  return out;
}

const std::vector<std::string> kTrained = {
    "fc.bias exp_avg",    "fc.bias exp_avg_sq",    "fc.bias fp32",
    "fc.weight exp_avg",  "fc.weight exp_avg_sq",  "fc.weight fp32",
    "wte.weight exp_avg", "wte.weight exp_avg_sq", "wte.weight fp32",
};

std::vector<float> floats(const Source& source, const std::string& fqn, std::string_view state) {
  const auto& tensors = source.catalog().tensors;
  const auto found = std::ranges::find_if(tensors, [&](const TensorInfo& tensor) {
    return tensor.fqn == fqn && tensor.state == state;
  });
  const auto bytes = read_all(source, static_cast<std::size_t>(found - tensors.begin()));
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

TEST(TrainingFile, HasParametersMomentsGroupsAndStep) {
  const auto source = open_source(posix_storage(), kFiles / "training.pt");
  const Catalog& catalog = source->catalog();
  std::vector<std::string> expected = kTrained;
  expected.emplace_back("rng extra");
  std::ranges::sort(expected);
  EXPECT_EQ(labels(catalog), expected);
  EXPECT_EQ(catalog.step, 3);
  ASSERT_EQ(catalog.aliases.size(), 1u);
  EXPECT_EQ(catalog.aliases[0].fqn, "head.weight");
  EXPECT_EQ(catalog.aliases[0].target, "wte.weight");
  ASSERT_EQ(catalog.groups.size(), 2u);
  EXPECT_EQ(catalog.groups[0]["params"], Json({"wte.weight", "fc.weight"}));
  EXPECT_EQ(catalog.groups[1]["params"], Json({"fc.bias"}));
  EXPECT_EQ(catalog.groups[0]["weight_decay"], 0.1);
  EXPECT_EQ(catalog.client_state["iter_num"], 3);
  EXPECT_EQ(catalog.client_state["config"]["lr"], 1e-3);
}

TEST(TrainingFile, OfLightningHasTheSameState) {
  const auto source = open_source(posix_storage(), kFiles / "lightning.ckpt");
  const auto other = open_source(posix_storage(), kFiles / "training.pt");
  EXPECT_EQ(labels(source->catalog()), kTrained);
  EXPECT_EQ(source->catalog().client_state["global_step"], 3);
  for (const char* state : {"fp32", "exp_avg", "exp_avg_sq"})
    EXPECT_EQ(floats(*source, "fc.weight", state), floats(*other, "fc.weight", state)) << state;
}

// AdamW([b, a]) of two parameters of one shape: only the list of names tells which is which.
TEST(TrainingFile, NamesThatTheGroupsListCount) {
  const auto source = open_source(posix_storage(), kFiles / "listed_names.pt");
  EXPECT_EQ(source->catalog().groups[0]["params"], Json({"b", "a"}));
  EXPECT_EQ(floats(*source, "a", "exp_avg"), (std::vector<float>{1, 1}));
  EXPECT_EQ(floats(*source, "b", "exp_avg"), (std::vector<float>{2, 2}));
  EXPECT_TRUE(source->remarks().empty());
}

// The loss does not use `b`, so that the optimizer has no state for number 1.
TEST(TrainingFile, AParameterWithoutStateKeepsItsPlaceInTheOrder) {
  const auto source = open_source(posix_storage(), kFiles / "unused_parameter.pt");
  EXPECT_THAT(labels(source->catalog()),
              testing::UnorderedElementsAre(
                  "a.weight fp32", "a.weight exp_avg", "a.weight exp_avg_sq", "b.weight weights",
                  "c.weight fp32", "c.weight exp_avg", "c.weight exp_avg_sq"));
  EXPECT_EQ(source->catalog().groups[0]["params"], Json({"a.weight", "b.weight", "c.weight"}));
  EXPECT_EQ(floats(*source, "a.weight", "exp_avg"), (std::vector<float>{1, 1}));
  EXPECT_EQ(floats(*source, "c.weight", "exp_avg"), (std::vector<float>{3, 3}));
  EXPECT_THAT(source->notes(), testing::IsEmpty());
  EXPECT_THAT(source->remarks(), testing::ElementsAre(testing::HasSubstr("have numbers")));
}

TEST(TrainingFile, OfAnOptimizerAloneHasNoModel) {
  const auto source = open_source(posix_storage(), kFiles / "optimizer.pt");
  EXPECT_EQ(
      labels(source->catalog()),
      (std::vector<std::string>{"state.0 exp_avg", "state.0 exp_avg_sq", "state.1 exp_avg",
                                "state.1 exp_avg_sq", "state.2 exp_avg", "state.2 exp_avg_sq"}));
  EXPECT_EQ(source->catalog().step, 3);
}

TEST(TrainingFile, ALearningRateInATensorIsASettingOfItsGroup) {
  const auto source = open_source(posix_storage(), kFiles / "tensor_lr.pt");
  const Catalog& catalog = source->catalog();
  ASSERT_EQ(catalog.groups.size(), 1u) << catalog.groups.dump();
  EXPECT_FLOAT_EQ(catalog.groups[0]["lr"].get<float>(), 1e-3f);
  EXPECT_EQ(catalog.groups[0]["params"], Json({"weight", "bias"}));
  EXPECT_EQ(catalog.tensors.size(), 6u);
  EXPECT_FALSE(source->layout().is_null());
}

/// Copies the file to a torch.save file as a conversion does.
std::unique_ptr<Sink> copy_as_torch(const Source& source, const Path& output, const Json& layout) {
  auto sink =
      make_sink(posix_storage(), {.format = "torch", .path = output, .tag = {}, .layout = layout},
                source.catalog());
  CopyPlan plan{.source = &source, .target = &source.catalog(), .tensor_map = {}};
  for (std::size_t i = 0; i < source.catalog().tensors.size(); ++i) plan.tensor_map.push_back(i);
  copy(plan, *sink, {});
  sink->commit();
  return sink;
}

TEST(TrainingFile, KeepsItsLayoutInAnotherTorchFile) {
  for (const char* name :
       {"training.pt", "lightning.ckpt", "optimizer.pt", "tensor_lr.pt", "unused_parameter.pt"}) {
    const test::TempDir folder;
    const Path copy = folder.path() / "copy.pt";
    const auto source = open_source(posix_storage(), kFiles / name);
    copy_as_torch(*source, copy, source->layout());
    const auto again = open_source(posix_storage(), copy);
    EXPECT_EQ(again->layout(), source->layout()) << name;
    ASSERT_EQ(labels(again->catalog()), labels(source->catalog())) << name;
    for (std::size_t i = 0; i < source->catalog().tensors.size(); ++i)
      EXPECT_EQ(read_all(*again, i), read_all(*source, i)) << name;
  }
}

TEST(TrainingFile, LosesOnlyTheObjectThatCannotBeWritten) {
  const test::TempDir folder;
  const auto source = open_source(posix_storage(), kFiles / "odd_object.pt");
  const auto sink = copy_as_torch(*source, folder.path() / "copy.pt", source->layout());
  ASSERT_EQ(sink->notes().size(), 1u);
  EXPECT_THAT(sink->notes()[0], testing::StartsWith("args.odd: "));
  Json expected = source->layout();
  expected["object"]["args"].erase("odd");
  EXPECT_EQ(open_source(posix_storage(), folder.path() / "copy.pt")->layout(), expected);
}

TEST(TrainingFile, HasUniShardsLayoutWhereATensorIsGone) {
  const test::TempDir folder;
  const auto source = open_source(posix_storage(), kFiles / "training.pt");
  Json layout = source->layout();
  layout["tensors"].erase(0);
  copy_as_torch(*source, folder.path() / "copy.pt", layout);
  const auto again = open_source(posix_storage(), folder.path() / "copy.pt");
  EXPECT_EQ(labels(again->catalog()), labels(source->catalog()));
  EXPECT_TRUE(again->layout().is_null());
}

TEST(TorchViews, OfOneStorageThatDifferInSignOrConjugationAreTwoTensors) {
  const auto source = open_source(posix_storage(), kFiles / "views_of_one_storage.pt");
  const auto& aliases = source->catalog().aliases;
  ASSERT_EQ(aliases.size(), 1u);
  EXPECT_EQ(aliases[0].fqn, "same");
  EXPECT_EQ(floats(*source, "real", "weights"), (std::vector<float>{1, -2, 3}));
  EXPECT_EQ(floats(*source, "negative", "weights"), (std::vector<float>{-1, 2, -3}));
  EXPECT_EQ(floats(*source, "complex", "weights"), (std::vector<float>{1, 2, 3, -4}));
  EXPECT_EQ(floats(*source, "conjugate", "weights"), (std::vector<float>{1, -2, 3, 4}));
}

}  // namespace
}  // namespace unishard::converters
