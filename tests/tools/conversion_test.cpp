// Every format into every other one, on a checkpoint with everything that the formats know.
#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/registry.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "fixtures.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"
#include "workflows/catalog_digests.hpp"
#include "workflows/conversion_plan.hpp"
#include "workflows/rename_rules.hpp"

#include <gtest/gtest.h>

#include <array>
#include <iostream>

namespace unishard::tools {
namespace {

using test::TempDir;

std::vector<RenameRule> parse_renames(const std::vector<std::string>& texts) {
  std::vector<RenameRule> rules;
  for (const std::string& text : texts) rules.push_back(parse_rename(text));
  return rules;
}

/// GGUF has too few types for the example; a Trainer has no place for 16-bit copies beside masters.
std::vector<std::string_view> format_names() {
  std::vector<std::string_view> names;
  for (const converters::FormatEntry& entry : converters::known_formats()) {
    if (entry.name != "gguf" && entry.name != "trainer" && entry.name != "accelerate")
      names.push_back(entry.name);
  }
  return names;
}
const std::vector<std::string_view> kFormats = format_names();

converters::Output output(std::string_view format, const Path& folder) {
  converters::Output options;
  options.format = format;
  options.tag = "tag";
  options.path = folder;
  if (format == "torch") options.path += ".pt";
  if (format == "hdf5") options.path += ".h5";
  if (format == "npz" || format == "gguf") options.path += "." + std::string(format);
  if (format == "safetensors") options.path += ".safetensors";
  return options;
}

std::unique_ptr<converters::Source> convert(const converters::Source& source,
                                            const ConvertOptions& options,
                                            const converters::Output& to) {
  const ConversionPlan plan = plan_convert(source, options);
  const auto sink = converters::make_sink(posix_storage(), to, plan.target);
  converters::CopyResult copied =
      converters::copy({.source = &source, .target = &plan.target, .tensor_map = plan.tensor_map},
                       *sink, {}, converters::WantDigests::Yes);
  const converters::Digests digests =
      converters::whole_digests(plan.target, std::move(copied.digests));
  const Catalog measured = with_digests(source, {});
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const TensorInfo& from = measured.tensors[plan.tensor_map[i]];
    if (digests[i] && from.dtype == plan.target.tensors[i].dtype) {
      EXPECT_EQ(digests[i], from.crc64) << to.format << " " << from.label();
    }
  }
  sink->commit();
  return converters::open_source(posix_storage(), to.path);
}

class Conversion : public testing::Test {
 protected:
  Conversion() {
    test::write_example(temp.path() / "example", {.world_size = 3, .stage = 2, .bf16 = true});
    example = converters::open_source(posix_storage(), temp.path() / "example");
    expected = with_digests(*example, {});
  }
  Path file(std::string_view name) const { return temp.path() / name; }

  TempDir temp;
  std::unique_ptr<converters::Source> example;
  Catalog expected;
};

TEST_F(Conversion, EveryFormatIntoEveryOtherKeepsTheIdentity) {
  const std::string wanted = identity(expected).value();
  for (const std::string_view from : kFormats) {
    const std::string first_name(from);
    const auto first = convert(*example, {}, output(from, file(first_name)));
    std::cout << from << " ->";
    for (const std::string_view to : kFormats) {
      SCOPED_TRACE(first_name + " to " + std::string(to));
      const auto second = convert(*first, {}, output(to, file(first_name + "-" + std::string(to))));
      const Catalog written = with_digests(*second, {});
      EXPECT_EQ(identity(written), wanted) << testing::PrintToString(differing(expected, written));
      EXPECT_EQ(written.step, expected.step);
      EXPECT_EQ(written.aliases, expected.aliases);
      std::cout << " " << to << (identity(written) == wanted ? " equal" : " DIFFERENT");
    }
    std::cout << "\n";
  }
}

TEST_F(Conversion, AnotherWorldSizeAndStageKeepTheIdentity) {
  for (const std::string_view format : {"deepspeed", "dcp", "native"}) {
    for (const std::uint32_t world_size : {1u, 2u, 5u}) {
      for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
        const std::string name =
            std::string(format) + std::to_string(world_size) + std::to_string(stage);
        SCOPED_TRACE(name);
        const auto made = convert(*example, {.world_size = world_size, .stage = stage},
                                  output(format, file(name)));
        EXPECT_EQ(identity(with_digests(*made, {})), identity(expected));
      }
    }
  }
}

TEST_F(Conversion, WeightsOnlyGivesOnePlainTensorPerParameter) {
  const auto made = convert(*example, {.dtype = DType::BFloat16, .weights_only = true},
                            output("safetensors", file("weights")));
  for (const TensorInfo& tensor : made->catalog().tensors) {
    EXPECT_EQ(tensor.state, state::kWeights);
    EXPECT_TRUE(tensor.dtype == DType::BFloat16 || info(tensor.dtype).kind != Kind::Float)
        << tensor.label();
  }
  EXPECT_TRUE(made->catalog().groups.is_null());
}

TEST_F(Conversion, OnlyAndRenameChooseAndNameTensors) {
  const std::string first = expected.tensors.front().fqn;
  const auto plan =
      plan_convert(*example, {.only = {first}, .renames = parse_renames({"^=model."})});
  ASSERT_FALSE(plan.target.tensors.empty());
  for (const TensorInfo& tensor : plan.target.tensors) EXPECT_EQ(tensor.fqn, "model." + first);
  EXPECT_FALSE(plan.notes.empty());
}

/// A source that has its first tensor once more, in a value of the user's.
class WithExtra final : public converters::Source {
 public:
  explicit WithExtra(const converters::Source& base) : base_(base), catalog_(base.catalog()) {
    TensorInfo extra = catalog_.tensors.front();
    extra.fqn = "ema.0";
    extra.state = converters::kExtraState;
    catalog_.tensors.push_back(std::move(extra));
  }
  std::string format() const override { return base_.format(); }
  const Catalog& catalog() const override { return catalog_; }
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    base_.read(tensor == base_.catalog().tensors.size() ? 0 : tensor, range, out);
  }

 private:
  const converters::Source& base_;
  Catalog catalog_;
};

TEST_F(Conversion, RenameLeavesTheTensorsOfTheClientStateAlone) {
  const auto plan = plan_convert(WithExtra(*example), {.renames = parse_renames({"^=model."})});
  for (const TensorInfo& tensor : plan.target.tensors)
    EXPECT_NE(tensor.fqn.starts_with("model."), tensor.state == converters::kExtraState);
}

TEST_F(Conversion, OnlyTheSecondNameOfATiedTensorIsWrittenUnderThat) {
  ASSERT_FALSE(expected.aliases.empty());
  const Alias& alias = expected.aliases.front();
  const auto plan = plan_convert(*example, {.only = {alias.fqn}});
  ASSERT_FALSE(plan.target.tensors.empty());
  for (const TensorInfo& tensor : plan.target.tensors) EXPECT_EQ(tensor.fqn, alias.fqn);
  EXPECT_TRUE(plan.target.aliases.empty());
}

TEST_F(Conversion, TwoTensorsOfOneNameAreRefused) {
  const auto fails = test::Fails(ErrorCode::InvalidArgument, {"--rename gives", "one name"});
  const auto renames = parse_renames({".+=x"});
  EXPECT_THAT(test::error_of([&] { plan_convert(*example, {.renames = renames}); }), fails);
  EXPECT_THAT(test::error_of([&] { plan_consolidate(*example, {.renames = renames}); }), fails);
}

TEST_F(Conversion, ARuleThatMakesAnEmptyNameIsRefused) {
  const auto fails = test::Fails(ErrorCode::InvalidArgument, {"--rename", "an empty name"});
  const auto renames = parse_renames({".+="});
  EXPECT_THAT(test::error_of([&] { plan_convert(*example, {.renames = renames}); }), fails);
  EXPECT_THAT(test::error_of([&] { plan_consolidate(*example, {.renames = renames}); }), fails);
}

TEST_F(Conversion, ARuleThatChangesNoNameIsSaid) {
  const auto renames = parse_renames({"^=model.", "nobody=x", "model=m"});
  const auto said = testing::ElementsAre(testing::HasSubstr("--rename nobody=x: no name"));
  EXPECT_THAT(plan_convert(*example, {.renames = renames}).remarks, said);
  EXPECT_THAT(plan_consolidate(*example, {.renames = renames}).remarks, said);
}

/// The tensors of a model's file, without data.
class Described final : public converters::Source {
 public:
  void add(const std::string& fqn, std::string_view state) {
    TensorInfo tensor;
    tensor.fqn = fqn;
    tensor.state = state;
    tensor.shape = {2};
    catalog_.tensors.push_back(std::move(tensor));
  }
  std::string format() const override { return "test"; }
  const Catalog& catalog() const override { return catalog_; }

 private:
  void read_range(std::size_t, ElementRange, std::span<std::byte>) const override {
    raise(ErrorCode::Internal, "there are no data");
  }

  Catalog catalog_;
};

TEST(RenameRules, ReferToGroupsThatTheExpressionHas) {
  EXPECT_EQ(parse_rename("^(a)\\.(b)=$2.$1").to, "$2.$1");
  EXPECT_THAT(test::error_of([] { parse_rename("^embed\\.(.*)=wte.\\1"); }),
              test::Fails(ErrorCode::InvalidArgument, {"refers to a group by \\1"}));
  EXPECT_THAT(test::error_of([] { parse_rename("^embed\\.(.*)=wte.$2"); }),
              test::Fails(ErrorCode::InvalidArgument, {"the group $2", "has 1"}));
}

TEST(ConversionPlan, WeightsOnlySaysWhatIsOfAnotherModel) {
  Described source;
  source.add("a", state::kWeights);
  source.add("ema.a", converters::kExtraState);
  EXPECT_THAT(plan_convert(source, {.weights_only = true}).notes,
              testing::ElementsAre(testing::HasSubstr("1 tensors beside this model")));
  EXPECT_THAT(plan_convert(source, {}).notes, testing::IsEmpty()) << "it is written";
  source.add("a", "exp_avg");
  EXPECT_THAT(plan_convert(source, {.weights_only = true}).notes,
              testing::ElementsAre(testing::HasSubstr("1 optimizer states"),
                                   testing::HasSubstr("(\"ema.a\" first)")));
}

// Each of these takes a backtracking matcher longer than the universe is old.
TEST(ConversionPlan, PatternsOfOldNamesAreLeftOutWithANote) {
  SKIP_WITHOUT_FIXTURES();
  const auto source = converters::open_source(
      posix_storage(), test::fixtures() / "parallel/mg_tp2_stage1_fp32/checkpoint");
  EXPECT_TRUE(plan_convert(*source, {}).target.client_state.contains("universal_checkpoint_info"));
  const auto plan = plan_convert(*source, {.renames = parse_renames({"^=model."})});
  EXPECT_TRUE(plan.target.client_state.is_null());
  EXPECT_THAT(plan.notes, testing::Contains(testing::HasSubstr("universal_checkpoint_info")));
}

TEST(ParseRenames, RulesThatBacktrackForEverAreRefused) {
  const std::string name = std::string(60, 'a') + ".weight";
  for (const char* from : {"(a+)+$", "(a|a)*$", "(a*)*b", "^(\\w|a)+b", "(a|aa)+#"}) {
    Renamer rename(parse_renames({from + std::string("=b")}));
    EXPECT_THAT(test::error_of([&] { rename(name); }),
                test::Fails(ErrorCode::InvalidArgument, {quote(from), quote(name)}))
        << from;
  }
}

TEST(ParseRenames, OrdinaryRulesApplyToTheLongestNames) {
  const std::string name = std::string(4000, 'x') + ".10.weight";
  const auto renamed = [&](const char* rule) { return Renamer(parse_renames({rule}))(name); };
  EXPECT_EQ(renamed(R"(^(.*)\.(\d+)\.=$2.$1.)").substr(0, 5), "10.xx");
  EXPECT_EQ(renamed("(x+)=y"), "y.10.weight");
  EXPECT_EQ(renamed("[a-z]+$=bias"), std::string(4000, 'x') + ".10.bias");
  EXPECT_THROW(renamed(".=$&$&$&"), Error) << "no name is that long";
}

TEST(ParseRenames, RefusesWhatIsNoRule) {
  EXPECT_THROW(parse_renames({"nothing"}), Error);
  EXPECT_THROW(parse_renames({"(=x"}), Error);
}

}  // namespace
}  // namespace unishard::tools
