// The tests' own header can fail.
#include "expect.hpp"

#include "temp_dir.hpp"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace unishard::test {
namespace {

using testing::_;
using testing::Not;
using testing::StrEq;

const Error kError(ErrorCode::Corrupt, "x.h5: byte 7 is damaged", "take another");

TEST(Expect, AnActionThatThrowsNothingFailsTheTest) {
  EXPECT_NONFATAL_FAILURE(error_of([] {}), "nothing was thrown");
  EXPECT_EQ(thrown_by([] {}), std::nullopt);
  EXPECT_THROW(error_of([] { throw std::runtime_error("no Error"); }), std::runtime_error);
}

TEST(Expect, FailsLooksAtCodeMessageAndHint) {
  EXPECT_THAT(error_of([] { throw kError; }), Fails(ErrorCode::Corrupt));
  EXPECT_THAT(kError, Fails(ErrorCode::Corrupt, "byte 7"));
  EXPECT_THAT(kError, Fails(ErrorCode::Corrupt, {"x.h5", "damaged"}, StrEq("take another")));
  EXPECT_THAT(kError, Fails(ErrorCode::Corrupt, std::vector<std::string>{"x.h5", "7"}, _));
  EXPECT_THAT(kError, Not(Fails(ErrorCode::Io)));
  EXPECT_THAT(kError, Not(Fails(ErrorCode::Corrupt, "byte 8")));
  EXPECT_THAT(kError, Not(Fails(ErrorCode::Corrupt, {"x.h5", "byte 8"})));
  EXPECT_THAT(kError, Not(Fails(ErrorCode::Corrupt, StrEq("byte 7"))));
  EXPECT_THAT(kError, Not(Fails(ErrorCode::Corrupt, _, "nothing")));
}

TEST(Expect, AFailureShowsTheErrorAndWhatDiffers) {
  const std::string shown = "Actual: corrupt: x.h5: byte 7 is damaged | hint: take another";
  const auto explanation = [](const FailsMatcher& matcher) {
    std::ostringstream out;
    EXPECT_FALSE(matcher.MatchAndExplain(kError, &out));
    return out.str();
  };
  EXPECT_NONFATAL_FAILURE(EXPECT_THAT(kError, Fails(ErrorCode::Io)), shown);
  EXPECT_EQ(explanation(Fails(ErrorCode::Io)), "with another code");
  EXPECT_EQ(explanation(Fails(ErrorCode::Corrupt, "byte 8")), "with another message");
  EXPECT_EQ(explanation(Fails(ErrorCode::Corrupt, _, "nothing")), "with another hint");
}

TEST(Expect, FilesAreChangedInPlaceOrLoudly) {
  const TempDir dir;
  const std::filesystem::path path = dir.path() / "a" / "b";
  EXPECT_THROW(read_file(path), std::runtime_error);
  EXPECT_THROW(flip_bits(path, 0), std::runtime_error);
  write_file(path, std::string("a\0c", 3));
  flip_bits(path, 1, 0x42);
  EXPECT_EQ(read_file(path), "aBc");
  EXPECT_THROW(flip_bits(path, 3), std::runtime_error);
  overwrite(path, 1, "xy");
  EXPECT_THROW(overwrite(path, 2, "xy"), std::exception);
  EXPECT_EQ(read_files_below(dir.path()), (std::map<std::string, std::string>{{"a/b", "axy"}}));
}

}  // namespace
}  // namespace unishard::test
