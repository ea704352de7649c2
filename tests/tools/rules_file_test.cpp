// The file of rules: what it holds, what earlier versions had instead, and what is refused.
#include "workflows/rules_file.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/io.hpp"

#include "expect.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace unishard::tools {
namespace {

class RulesFile : public testing::Test {
 protected:
  Rules read(const std::string& text, std::string_view option = "--rules") {
    test::write_file(file_, text);
    return read_rules(file_, option);
  }
  std::vector<std::string> names(const Rules& rules) {
    std::vector<std::string> lines;
    for (const RenameRule& rule : rules.renames) lines.push_back(rule.from + "=" + rule.to);
    return lines;
  }
  const test::TempDir temp_;
  const Path file_ = temp_.path() / "rules.json";
};

TEST_F(RulesFile, IsReadAsItWasSaved) {
  const Rules rules{.layout = "llama",
                    .renames = {{R"(^0\.(.*)$)", "a.$1"}, {"=", "equal"}},
                    .cuts = {{"tp_replicated_parameter_patterns", {"norm"}}}};
  save_rules(posix_storage(), file_, rules);
  const Rules read = read_rules(file_, "--rules");
  EXPECT_EQ(read.layout, rules.layout);
  EXPECT_EQ(names(read), names(rules));
  EXPECT_EQ(read.cuts, rules.cuts);
  EXPECT_THAT(test::error_of([&] { save_rules(posix_storage(), file_, rules); }),
              test::Fails(ErrorCode::AlreadyExists, {"rules.json"}));
}

TEST_F(RulesFile, OfEarlierVersionsStayReadable) {
  const Rules lines = read("# names\n\n^0\\.=a.\nb=c=d\n", "--rename");
  EXPECT_EQ(names(lines), (std::vector<std::string>{"^0\\.=a.", "b=c=d"}));
  EXPECT_TRUE(lines.cuts.is_null());
  const Rules lists = read(R"({"vocabulary_parameter_patterns": ["e"], "original_vocab_size": 7})");
  EXPECT_EQ(lists.cuts["original_vocab_size"], 7);
  EXPECT_TRUE(lists.renames.empty());
}

TEST_F(RulesFile, ThatIsNoneIsRefusedByName) {
  const std::pair<std::string, std::string> cases[] = {
      {"[]", "no object"},
      {"", "no object"},
      {"a=b", "no object"},
      {R"({"renames": [)", "rules.json"},
      {R"({"renames": {}})", "not a list"},
      {R"({"renames": ["a=b"]})", "from and to"},
      {R"({"renames": [{"from": "a", "to": 1}]})", "from and to"},
      {R"({"renames": [{"from": "a", "to": "b", "too": "c"}]})", "from and to"},
      {R"({"renames": [{"from": "(", "to": ""}]})", "regular expression"},
      {R"({"renames": [{"from": "", "to": "b"}]})", "regular expression"},
      {R"({"renames": [], "cut": {}})", "\"cut\""},
      {R"({"cuts": []})", "cuts is no object"},
      {R"({"layout": "lama"})", "\"lama\""},
      {R"({"layout": 1})", "layout is no text"},
  };
  for (const auto& [text, words] : cases) {
    EXPECT_THAT(test::error_of([&, &text = text] { read(text); }),
                test::Fails(ErrorCode::InvalidArgument, {words}))
        << text;
  }
  EXPECT_THAT(test::error_of([&] { read_rules(temp_.path(), "--rules"); }),
              test::Fails(ErrorCode::InvalidArgument, {"--rules: cannot read", "a folder"}));
  EXPECT_THAT(test::error_of([&] { read_rules(temp_.path() / "none", "--rename"); }),
              test::Fails(ErrorCode::InvalidArgument, {"--rename: cannot read"}));
}

TEST_F(RulesFile, HasASchemaOfItsKeys) {
  const Json properties = rules_schema().at("properties");
  const Json made = rules_json({.layout = "neox", .renames = {{"a", "b"}}, .cuts = Json::object()},
                               {"a comment"});
  EXPECT_EQ(made.size(), 4u);
  for (const auto& [key, value] : made.items()) EXPECT_TRUE(properties.contains(key)) << key;
}

}  // namespace
}  // namespace unishard::tools
