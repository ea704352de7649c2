#include "unishard/format/error.hpp"

#include "launch/rank_environment.hpp"
#include "support/completion.hpp"
#include "support/man_page.hpp"
#include "support/size_text.hpp"
#include "views/inspect_rows.hpp"
#include "views/table.hpp"
#include "workflows/layout_drawing.hpp"

#include <gtest/gtest.h>

namespace unishard::tools {
namespace {

TEST(ParseBytes, KnowsDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("5GB", "x"), 5'000'000'000u);
  EXPECT_EQ(parse_bytes("64MiB", "x"), 64u << 20);
  EXPECT_EQ(parse_bytes("1.5 kib", "x"), 1536u);
  EXPECT_EQ(parse_bytes("4096", "x"), 4096u);
  EXPECT_EQ(parse_bytes("2tb", "x"), 2'000'000'000'000u);
}

TEST(ParseBytes, RefusesTheRest) {
  for (const char* text :
       {"", "GB", "5XB", "-1KB", "0", "0.1", "nan", "inf", "1e3KB", "5GB5", "9999999TB"}) {
    EXPECT_THROW(parse_bytes(text, "--size"), Error) << text;
  }
}

TEST(FormatBytes, ChoosesTheUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes((1u << 20) - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{5} << 40), "5.00 TiB");
}

TEST(FormatText, CountsAndDurations) {
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_duration(8.4), "8 s");
  EXPECT_EQ(format_duration(125), "2 min 05 s");
  EXPECT_EQ(format_duration(3600 * 3 + 720), "3 h 12 min");
}

TEST(InspectRows, NamesInBracesSpellOutExactlyTheirParameters) {
  const auto names = [](const std::vector<std::pair<std::string, Shape>>& parameters,
                        const cli::InspectView& view = {}) {
    Catalog catalog;
    for (const auto& [fqn, shape] : parameters)
      catalog.tensors.push_back({fqn, "weights", DType::Float32, shape, -1, false, false, {}, {}});
    std::vector<std::string> out;
    for (const cli::InspectRow& row : cli::inspect_rows(catalog, view)) out.push_back(row.name);
    return out;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({{"h.2.w", {2}}, {"x", {2}}, {"h.0.w", {2}}, {"h.1.w", {3}}, {"h.3.w", {2}}}),
            (Names{"h.{0, 2..3}.w", "x", "h.1.w"}));
  EXPECT_EQ(names({{"l.0.e.0.w", {}}, {"l.0.e.1.w", {}}, {"l.1.e.0.w", {}}, {"l.1.e.1.w", {}}}),
            Names{"l.{0..1}.e.{0..1}.w"});
  EXPECT_EQ(names({{"l.0.e.0.w", {}}, {"l.0.e.1.w", {}}, {"l.1.e.0.w", {}}}),
            (Names{"l.0.e.{0..1}.w", "l.1.e.0.w"}));
  EXPECT_EQ(names({{"h.0.w", {}}, {"h.1.w", {}}}, {.collapse = false}), (Names{"h.0.w", "h.1.w"}));
  EXPECT_EQ(names({{"0.0.0.0.0.0.0.0.0", {}}, {"0.0.0.0.0.0.0.0.1", {}}}).size(), 2u);
  EXPECT_EQ(names({{"h.00.w", {}}, {"h.01.w", {}}}), (Names{"h.00.w", "h.01.w"}));
  std::vector<std::pair<std::string, Shape>> odd;
  for (int layer = 1; layer < 20; layer += 2) odd.push_back({"h." + std::to_string(layer), {}});
  EXPECT_EQ(names(odd), Names{"h.{1, 3, 5, 7, 9, 11, ...}"});
}

TEST(InspectRows, ARowHasTheStatesOfItsParameter) {
  Catalog catalog;
  for (const char* fqn : {"h.0.w", "h.1.w"}) {
    for (const char* state : {"fp32", "exp_avg"})
      catalog.tensors.push_back({fqn, state, DType::Float32, {4}, 1, false, false, {}, {}});
    catalog.tensors.push_back({fqn, "weights", DType::BFloat16, {4}, 1, false, true, {}, {}});
  }
  const std::vector<cli::InspectRow> rows = cli::inspect_rows(catalog, {});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].dtypes, "float32, bfloat16");
  EXPECT_EQ(rows[0].states, "fp32 exp_avg, weights (derived)");
  EXPECT_EQ(rows[0].bytes, 64u) << "the derived weights are not stored";
  EXPECT_EQ(rows[0].elements, 8u);
  EXPECT_EQ(rows[0].group, 1);
}

TEST(DrawBar, ShowsOwnersInProportion) {
  const std::vector<OwnedPart> owners = {{0, {0, 50}}, {1, {50, 75}}, {10, {75, 100}}};
  EXPECT_EQ(draw_bar(owners, {100}, 8), "000011aa");
  EXPECT_EQ(draw_bar({}, {100}, 3), "...");
  EXPECT_EQ(draw_bar(owners, {0}, 3), "...");
  EXPECT_EQ(list_parts(owners), "0:[0,50) 1:[50,75) 10:[75,100)");
}

TEST(DrawBar, ShowsBoxesByTheirElements) {
  const std::vector<OwnedPart> owners = {{0, {0, 6}, {{0, 0}, {2, 2}}},
                                         {1, {2, 8}, {{0, 2}, {2, 2}}}};
  EXPECT_EQ(draw_bar(owners, {2, 4}, 8), "00110011");
  EXPECT_EQ(list_parts(owners), "0:[0:2, 0:2] 1:[0:2, 2:4]");
}

TEST(Table, AlignsByWhatIsSeen) {
  cli::Table table({{"name"}, {"n", cli::Align::Right}});
  table.add({"\u00e9", "10"});
  table.add({"a\x1b[31m", "1"});
  EXPECT_EQ(table.text(), "name        n\n\u00e9          10\na\\x1b[31m   1\n");
}

TEST(RankEnvironment, IsTorchruns) {
  const auto variables = rank_environment({.rank = 5,
                                           .world_size = 8,
                                           .local_rank = 1,
                                           .local_size = 4,
                                           .master_addr = "h",
                                           .master_port = 77});
  for (const char* expected : {"RANK=5", "LOCAL_RANK=1", "WORLD_SIZE=8", "LOCAL_WORLD_SIZE=4",
                               "MASTER_ADDR=h", "MASTER_PORT=77"}) {
    EXPECT_EQ(std::count(variables.begin(), variables.end(), expected), 1) << expected;
  }
}

TEST(Completion, NamesVerbsAndOptions) {
  const std::vector<VerbWords> verbs = {{"verify", "it's", {{{"--deep"}, "", "", false}}, ""}};
  for (const std::string& script : {bash_completion(verbs), zsh_completion(verbs)}) {
    EXPECT_NE(script.find("verify"), std::string::npos);
    EXPECT_NE(script.find("--deep"), std::string::npos);
  }
  const std::string fish = fish_completion(verbs);
  EXPECT_NE(fish.find("-a verify -d 'it\\'s'"), std::string::npos) << fish;
  EXPECT_NE(fish.find("-l deep"), std::string::npos) << fish;
}

TEST(ManPage, EscapesWhatTroffInterprets) {
  const std::string page = man_page(
      "1.0", "tools",
      {{"diff", "Compare a\\b", {{{"-n", "--dry-run"}, "TEXT", ".x", false}}, "'a\n.b\n"}}, "n\n");
  EXPECT_NE(page.find("Compare a\\eb."), std::string::npos) << page;
  EXPECT_NE(page.find("\\fB\\-n, \\-\\-dry\\-run\\fR \\fITEXT\\fR\n\\&.x\n"), std::string::npos)
      << page;
  EXPECT_NE(page.find(".nf\n\\&'a\n\\&.b\n.fi\n"), std::string::npos) << page;
}

}  // namespace
}  // namespace unishard::tools
