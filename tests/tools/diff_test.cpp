#include "workflows/diff.hpp"

#include "unishard/converters/sink.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"
#include "views/diff_view.hpp"
#include "workflows/client_values.hpp"
#include "workflows/conversion_plan.hpp"

#include <gmock/gmock.h>
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

/// A source with second names of parameters: tied, or stored as equal copies without digests.
class WithSecondNames final : public Source {
 public:
  WithSecondNames(const Source& base, const std::vector<Alias>& names, bool are_copies)
      : base_(base), catalog_(base.catalog()) {
    catalog_.aliases = are_copies ? std::vector<Alias>{} : names;
    for (std::size_t i = 0; are_copies && i < base.catalog().tensors.size(); ++i) {
      const TensorInfo& tensor = base.catalog().tensors[i];
      const auto name = std::ranges::find(names, tensor.fqn, &Alias::target);
      if (name == names.end()) continue;
      catalog_.tensors.push_back(tensor);
      catalog_.tensors.back().fqn = name->fqn;
      catalog_.tensors.back().crc64.reset();
      copied_.push_back(i);
    }
  }
  std::string format() const override { return base_.format(); }
  const Catalog& catalog() const override { return catalog_; }
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    const std::size_t stored = base_.catalog().tensors.size();
    const bool is_copy = tensor >= stored;
    base_.read(is_copy ? copied_[tensor - stored] : tensor, range, out);
    if (is_copy && is_changed && range.begin == 0) out[0] ^= std::byte{1};
  }
  bool is_changed = false;  ///< the copies differ in a byte

 private:
  const Source& base_;
  Catalog catalog_;
  std::vector<std::size_t> copied_;
};

/// A source with values of the user's.
class WithClientState final : public Source {
 public:
  WithClientState(const Source& base, Json values) : base_(base), catalog_(base.catalog()) {
    catalog_.client_state = std::move(values);
  }
  std::string format() const override { return base_.format(); }
  const Catalog& catalog() const override { return catalog_; }
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    base_.read(tensor, range, out);
  }

 private:
  const Source& base_;
  Catalog catalog_;
};

/// A source with a state that cannot be read.
class WithALostState final : public Source {
 public:
  explicit WithALostState(const Source& base) : base_(base) {}
  std::string format() const override { return base_.format(); }
  const Catalog& catalog() const override { return base_.catalog(); }
  converters::Losses own_losses() const override {
    return {{converters::Role::State, "5 of 0", "its key is not a text"}};
  }
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    base_.read(tensor, range, out);
  }

 private:
  const Source& base_;
};

/// Returns the source with optimizer states that are no tensors.
WithClientState with_scalars(const Source& base, Json scalars) {
  Json values = base.catalog().client_state;
  values["optimizer_scalars"] = std::move(scalars);
  return {base, std::move(values)};
}

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

TEST_F(Diff, SaysWhichStatesItCannotCompare) {
  const auto source = write("a", {});
  const WithALostState lost(*source);
  const DiffReport report = diff(lost, *source, {});
  ASSERT_EQ(report.information.size(), 1u);
  EXPECT_NE(report.information[0].find("not compared, because A leaves it out"), std::string::npos);
  EXPECT_NE(report.information[0].find("5 of 0"), std::string::npos);
}

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

TEST_F(Diff, CountsTensorsByStateAndParameter) {
  const auto a = write("a", {});
  const Changed b(*a, 1);  // an exp_avg
  const DiffReport report = diff(*a, b, {});
  EXPECT_EQ(report.different_names, 1u);
  EXPECT_EQ(report.states.at("exp_avg").different, 1u);
  EXPECT_EQ(report.states.at("fp32").different, 0u);
  EXPECT_EQ(report.names, 12u) << "8 trained, a frozen one and 3 buffers";
  EXPECT_THAT(cli::diff_text(report).plain(),
              testing::EndsWith("different: 1 of 28 tensors (1 of 12 parameters)\n"
                                "  buffer: 3 equal\n"
                                "  exp_avg: 1 of 8 differ\n"
                                "  exp_avg_sq: 8 equal\n"
                                "  fp32: 8 equal\n"
                                "  weights: 1 equal\n"));
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

TEST_F(Diff, ComparesOptimizerStatesThatAreNoTensors) {
  const auto base = write("a", {});
  const std::string fqn = base->catalog().tensors[0].fqn;
  const WithClientState a =
      with_scalars(*base, {{"cnt", {{fqn, 7}}}, {"tag", {{fqn, "muon"}}}, {"step", {{fqn, 7}}}});
  const WithClientState b =
      with_scalars(*base, {{"cnt", {{fqn, 999}}}, {"rms", {{fqn, 0.5}}}, {"step", {{fqn, 7}}}});
  EXPECT_TRUE(diff(a, a, {}).same_state());
  const DiffReport report = diff(a, b, {});
  const Json json = cli::diff_json(report);
  EXPECT_FALSE(json["equal"].get<bool>());
  ASSERT_EQ(json["differences"].size(), 3u) << json.dump();
  EXPECT_EQ(json["differences"][0],
            (Json{{"tensor", fqn + " [cnt]"}, {"kind", "scalar"}, {"a", "7"}, {"b", "999"}}));
  EXPECT_EQ(json["differences"][1]["kind"], "only_in_a");
  EXPECT_EQ(json["differences"][2]["kind"], "only_in_b");
  EXPECT_EQ(json["states"]["cnt"]["different"], 1);
  EXPECT_THAT(cli::diff_text(report).plain(), testing::HasSubstr("[cnt]: 7 and 999\n"));
  EXPECT_TRUE(diff(a, b, {.tolerance = {}, .states = {"fp32"}}).same_state());
}

TEST_F(Diff, ComparesTheStepOfEachParameter) {
  const auto base = write("a", {});
  const std::string fqn = base->catalog().tensors[0].fqn;
  const WithClientState a = with_scalars(*base, {{"step", {{fqn, 1}}}});
  const WithClientState b = with_scalars(*base, {{"step", {{fqn, 3}}}});
  EXPECT_TRUE(diff(a, a, {}).same_state());
  const Json json = cli::diff_json(diff(a, b, {}));
  ASSERT_EQ(json["differences"].size(), 1u) << json.dump();
  EXPECT_EQ(json["differences"][0],
            (Json{{"tensor", fqn + " [step]"}, {"kind", "scalar"}, {"a", "1"}, {"b", "3"}}));
}

TEST_F(Diff, ListsTheValuesThatTheUserAdded) {
  const auto base = write("a", {});
  const WithClientState a(*base, {{"epoch", 1}, {"x", {1, 2}}, {"note", "s"}});
  const WithClientState b(*base, {{"epoch", 2}, {"x", {1, 3}}});
  const DiffReport report = diff(a, b, {});
  EXPECT_TRUE(report.same_state());
  EXPECT_EQ(report.information,
            (std::vector<std::string>{"client_state.epoch: 1 and 2", "client_state.x.1: 2 and 3",
                                      "client_state.note: only in A"}));
}

TEST_F(Diff, ComparesTensorsAndArraysThatTheUserAdded) {
  const auto base = write("a", {});
  const auto tensor = [](const char* hex) {
    return Json{{"$type", "torch.Tensor"}, {"dtype", "float32"}, {"shape", {1}}, {"hex", hex}};
  };
  const auto array = [](const char* hex) {
    return Json{{"$type", "object"},
                {"name", "numpy.core.multiarray._reconstruct"},
                {"state", {{"$type", "bytes"}, {"hex", hex}}}};
  };
  const WithClientState a(*base, {{"ema", {{"w", tensor("0000803f")}}}, {"np", array("00")}});
  const WithClientState b(*base, {{"ema", {{"w", tensor("00000040")}}}, {"np", array("01")}});
  const WithClientState none(*base, nullptr);
  EXPECT_TRUE(diff(a, a, {}).same_state());
  EXPECT_EQ(cli::diff_json(diff(a, a, {}))["states"]["extra"]["compared"], 2);
  const DiffReport report = diff(a, b, {});
  ASSERT_EQ(report.differences.size(), 2u);
  EXPECT_EQ(report.differences[0].tensor, "client_state.ema.w");
  EXPECT_EQ(report.differences[0].elements.max_abs, 1.0);
  EXPECT_EQ(report.differences[1].tensor, "client_state.np");
  EXPECT_EQ(diff(a, none, {}).differences.size(), 2u);
  EXPECT_EQ(diff(none, a, {}).differences.at(0).kind, DiffKind::OnlyInB);
  EXPECT_EQ(diff(a, b, {.tolerance = 1.0, .states = {}}).differences.size(), 1u) << "the array";
  EXPECT_EQ(note_client_tensors(a.catalog().client_state),
            "1 tensors of neither model nor optimizer (\"client_state.ema.w\" first)");
  EXPECT_EQ(note_client_tensors({{"epoch", 1}}), std::nullopt);
}

TEST_F(Diff, ATiedParameterEqualsItsCopy) {
  const auto full = write("a", {});
  const auto flat = write_model(*full);
  const std::vector<Alias>& names = full->catalog().aliases;
  const WithSecondNames flat_tied(*flat, names, false);
  WithSecondNames full_copy(*full, names, true), flat_copy(*flat, names, true);
  for (const auto& [tied, copy] :
       {std::pair<const Source*, WithSecondNames*>{full.get(), &full_copy},
        {full.get(), &flat_copy},
        {&flat_tied, &full_copy},
        {&flat_tied, &flat_copy}}) {
    ASSERT_EQ(copy->catalog().tensors.back().fqn, "lm_head.weight");
    for (const bool swapped : {false, true}) {
      const Source& a = swapped ? *copy : *tied;
      const Source& b = swapped ? *tied : *copy;
      copy->is_changed = false;
      const DiffReport equal = diff(a, b, {});
      EXPECT_TRUE(equal.same_state()) << cli::diff_text(equal).plain();
      EXPECT_THAT(cli::diff_text(equal).plain(),
                  testing::HasSubstr("info: tied parameters were compared"));
      EXPECT_THAT(cli::diff_text(equal).plain(), testing::HasSubstr("lm_head.weight"));
      copy->is_changed = true;
      const DiffReport changed = diff(a, b, {});
      ASSERT_FALSE(changed.same_state());
      for (const TensorDiff& found : changed.differences) {
        EXPECT_EQ(found.kind, DiffKind::Values);
        EXPECT_TRUE(found.tensor.starts_with("lm_head.weight [")) << found.tensor;
      }
    }
  }
}

TEST_F(Diff, ComparesWithSafetensors) {
  const auto a = write("a", {.bf16 = true});
  const auto b = write_model(*a);
  for (const DiffReport& report : {diff(*a, *b, {}), diff(*b, *a, {})}) {
    EXPECT_TRUE(report.same_state()) << cli::diff_text(report).plain();
  }
}

}  // namespace
}  // namespace unishard::tools
