#include "unishard/format/json.hpp"

#include "unishard/format/error.hpp"

#include "base/json_items.hpp"
#include "expect.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace unishard {
namespace {

void expect_refused(std::string_view text, const char* problem, JsonLimits limits = {}) {
  EXPECT_THAT(test::error_of([&] { parse_json(text, "file.json", limits); }),
              test::Fails(ErrorCode::Corrupt, problem));
}

TEST(Json, KeepsTheOrderOfMembers) {
  EXPECT_EQ(parse_json(R"({"b":1,"a":2})", "x").dump(), R"({"b":1,"a":2})");
}

TEST(Json, RefusesWhatIsNotStrict) {
  expect_refused(R"({"a":1,"a":2})", "\"a\" occurs twice");
  expect_refused(R"({"a":NaN})", "file.json: not valid JSON at byte 6");
  expect_refused(R"({"a":Infinity})", "not valid JSON");
  expect_refused(R"({"a":1e999})", "not valid JSON");
  expect_refused(R"({"a":1} x)", "not valid JSON");
  expect_refused("{\"a\":\"\xff\"}", "not valid JSON");
  expect_refused("", "not valid JSON");
}

TEST(Json, RefusesNulInsteadOfStoppingThere) {
  expect_refused(std::string_view("{}\0{}", 5), "NUL at byte 2");
}

TEST(Json, LeavesTheItemsOfAnArrayAsText) {
  const std::vector<std::string> texts = {
      R"({"items":[1,-2e5,"a,]\"}",{"b":[{}]},[[]],null],"items2":[7]})",
      " \n{ \"x\" : \"items\" ,\t\"items\" : [ { \"y\" : [ 1 , 2 ] } , true ] , \"z\" : { "
      "\"items\" : [3] } } ",
      R"({"\u0069tems":["\\"]})",
      "\xef\xbb\xbf{\"items\":[1]}",
      R"({"items":[]})",
      R"({"items":{"items":[1]}})",
      R"({"a":[1,2]})",
      R"([{"items":[1]}])",
      "{}",
      "3"};
  for (const std::string& text : texts) {
    const Json whole = parse_json(text, "x");
    std::vector<std::string_view> items;
    Json rest = detail::parse_json_but_items(text, "items", items, "x");
    const bool has_items =
        whole.is_object() && whole.contains("items") && whole["items"].is_array();
    EXPECT_EQ(items.size(), has_items ? whole["items"].size() : 0) << text;
    if (has_items) {
      EXPECT_TRUE(rest["items"].empty()) << text;
      for (const std::string_view item : items) rest["items"].push_back(parse_json(item, "x"));
    }
    EXPECT_EQ(rest, whole) << text;
  }
}

TEST(Json, LimitsDepthAndSize) {
  expect_refused(std::string(100'000, '['), "nested deeper than 64");
  expect_refused("[1,2,3]", "exceed the limit of 4", {.bytes = 4});
}

}  // namespace
}  // namespace unishard
