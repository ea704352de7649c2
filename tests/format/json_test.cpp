#include "unishard/format/json.hpp"

#include "unishard/format/error.hpp"

#include <gtest/gtest.h>

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

TEST(Json, LimitsDepthAndSize) {
  EXPECT_NE(problem(std::string(100'000, '[')).find("nested deeper than 64"), std::string::npos);
  EXPECT_NE(problem("[1,2,3]", {.bytes = 4}).find("exceed the limit of 4"), std::string::npos);
}

}  // namespace
}  // namespace unishard
