// Patterns of universal_checkpoint_info against what Python's re.match() says of them.
#include "formats/deepspeed/name_pattern.hpp"

#include "unishard/format/error.hpp"

#include "expect.hpp"

#include <gtest/gtest.h>

#include <string>

namespace unishard::converters::deepspeed {
namespace {

using test::error_of;
using test::Fails;

TEST(NamePattern, MatchesTheBeginningOfANameAsPythonDoes) {
  struct Case {
    const char *pattern, *name;
    bool matches;
  };
  const Case cases[] = {
      {"a", "abc", true},
      {"b", "abc", false},
      {"", "abc", true},
      {"abc$", "abc", true},
      {"abc$", "abcd", false},
      {"abc$", "abc\n", true},
      {"abc\\Z", "abc\n", false},
      {"(.*\\.)?word_embeddings\\.weight", "embedding.word_embeddings.weight", true},
      {"(.*\\.)?word_embeddings\\.weight", "word_embeddings.weight", true},
      {"(.*\\.)?word_embeddings\\.weight", "word_embeddingsXweight", false},
      {"(.*\\.)?(position_embeddings|\\w*layernorm)\\.\\w+", "layers.0.input_layernorm.bias", true},
      {"(.*\\.)?(position_embeddings|\\w*layernorm)\\.\\w+", "layers.0.layernormed.bias", false},
      {"(.*\\.)?dense_h_to_4h\\.(weight|bias)", "layers.1.dense_h_to_4h.bias", true},
      {"(.*\\.)?dense\\.weight", "layers.1.dense_4h_to_h.weight", false},
      {"\\d+\\.self_attention\\.(query|key)", "12.self_attention.key.weight", true},
      {"\\d+\\.self_attention\\.(query|key)", "x.self_attention.key.weight", false},
      {"[a-c]+[^.]$", "abcx", true},
      {"[a-c]+[^.]$", "abc.", false},
      {"[]x]", "]", true},
      {"[\\w.-]+$", "a.b-c_d", true},
      {"a{2,3}b", "aab", true},
      {"a{2,3}b", "aaaab", false},
      {"a{2}$", "aaa", false},
      {"a{,2}b", "b", true},
      {"a{,2}b", "aaab", false},
      {"a{2,}$", "aaaaa", true},
      {"a{x}", "a{x}", true},
      {"(?:ab)*?c", "ababc", true},
      {"(a|b|c|)d", "d", true},
      {"(a*)*b", "aaab", true},
      {"^a|b$", "b", true},
      {"^a|b$", "cb", false},
      {"a\nb", "a\nb", true},
      {"a.b", "a\nb", false},
      {"\\S\\s\\D", "a b", true},
      {"\\$\\^\\(", "$^(", true},
  };
  for (const Case& c : cases)
    EXPECT_EQ(NamePattern(c.pattern).matches(c.name), c.matches) << c.pattern << " on " << c.name;
}

TEST(NamePattern, OfOneNameIsKnownAsThat) {
  EXPECT_EQ(NamePattern("^model\\.layers\\.0\\.weight$").only_name(), "model.layers.0.weight");
  EXPECT_EQ(NamePattern("a$").only_name(), "a");
  EXPECT_EQ(NamePattern("a").only_name(), std::nullopt);
  EXPECT_EQ(NamePattern("a.c$").only_name(), std::nullopt);
  EXPECT_EQ(NamePattern("(a|b)$").only_name(), std::nullopt);
}

TEST(NamePattern, RefusesWhatItDoesNotHave) {
  for (const char* pattern : {"(?=a)", "(?!a)b", "(?P<x>a)", "(?i)a", "a\\b", "(a)\\1", "a)", "(a",
                              "[a", "*a", "a**", "a{3,2}", "a{5000}", "[z-a]", "\\"}) {
    EXPECT_THAT(error_of([&] { NamePattern{pattern}; }),
                Fails(ErrorCode::Unsupported, "universal_checkpoint_info"))
        << pattern;
  }
}

TEST(NamePattern, TakesBoundedTimeAndSpace) {
  // Exponential for a matcher that backtracks.
  std::string almost(2000, 'a');
  almost += 'b';
  EXPECT_FALSE(NamePattern("(a*)*(a*)*(a|aa)+$").matches(almost));
  EXPECT_THAT(error_of([] { NamePattern("(((a{999}){999}){999}){999}"); }),
              Fails(ErrorCode::Unsupported, "too large"));
  EXPECT_THAT(error_of([] { NamePattern(std::string(3000, '(') + std::string(3000, ')')); }),
              Fails(ErrorCode::Unsupported, "too long"));
  EXPECT_THAT(error_of([] { NamePattern(std::string(2000, '(') + std::string(2000, ')')); }),
              Fails(ErrorCode::Unsupported, "nested"));
  NamePatterns patterns;
  for (int i = 0; i < 100; ++i) patterns.add("(a{900}){20}b", 0);
  EXPECT_THAT(error_of([&] {
                for (int i = 0; i < 100000; ++i) (void)patterns.find(std::string(4000, 'a'));
              }),
              Fails(ErrorCode::Unsupported, "too much work"));
}

TEST(NamePatterns, NameEveryPatternThatMatches) {
  NamePatterns patterns;
  patterns.add("^a\\.b$", 0);
  patterns.add("a", 1);
  patterns.add("^a\\.b$", 2);
  patterns.add("c", 3);
  EXPECT_EQ(patterns.find("a.b"), (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(patterns.find("a.bc"), (std::vector<std::size_t>{1}));
  EXPECT_TRUE(patterns.find("b").empty());
}

}  // namespace
}  // namespace unishard::converters::deepspeed
