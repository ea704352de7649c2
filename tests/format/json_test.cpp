#include "unishard/format/json.hpp"

#include "unishard/format/error.hpp"

#include "base/json_items.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace unishard {
namespace {

std::string problem(std::string_view text, JsonLimits limits = {}) {
  try {
    parse_json(text, "file.json", limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Corrupt);
    return error.what();
  }
  return "accepted";
}

TEST(Json, KeepsTheOrderOfMembers) {
  EXPECT_EQ(parse_json(R"({"b":1,"a":2})", "x").dump(), R"({"b":1,"a":2})");
}

TEST(Json, RefusesWhatIsNotStrict) {
  EXPECT_NE(problem(R"({"a":1,"a":2})").find("\"a\" occurs twice"), std::string::npos);
  EXPECT_NE(problem(R"({"a":NaN})").find("file.json: not valid JSON at byte 6"), std::string::npos);
  EXPECT_NE(problem(R"({"a":Infinity})").find("not valid JSON"), std::string::npos);
  EXPECT_NE(problem(R"({"a":1e999})").find("not valid JSON"), std::string::npos);
  EXPECT_NE(problem(R"({"a":1} x)").find("not valid JSON"), std::string::npos);
  EXPECT_NE(problem("{\"a\":\"\xff\"}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(problem("").find("not valid JSON"), std::string::npos);
}

TEST(Json, RefusesNulInsteadOfStoppingThere) {
  EXPECT_NE(problem(std::string_view("{}\0{}", 5)).find("NUL at byte 2"), std::string::npos);
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
  EXPECT_NE(problem(std::string(100'000, '[')).find("nested deeper than 64"), std::string::npos);
  EXPECT_NE(problem("[1,2,3]", {.bytes = 4}).find("exceed the limit of 4"), std::string::npos);
}

}  // namespace
}  // namespace unishard
