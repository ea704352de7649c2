#include "unishard/format/error.hpp"

#include "launch/rank_environment.hpp"
#include "support/completion.hpp"
#include "support/man_page.hpp"
#include "support/size_text.hpp"
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
  const auto variables =
      rank_environment({.rank = 1, .world_size = 4, .master_addr = "h", .master_port = 77});
  for (const char* expected : {"RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=4",
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
