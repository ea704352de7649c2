#include "unishard/format/error.hpp"

#include "expect.hpp"

#include <gtest/gtest.h>

#include <cerrno>

namespace unishard {
namespace {

TEST(Error, MapsErrnoToWhatTheCallerCanDo) {
  const auto code_of = [](int number) {
    return test::error_of([&] { raise_errno("writing", "/x", number); }).code();
  };
  EXPECT_EQ(code_of(ENOSPC), ErrorCode::NoSpace);
  EXPECT_EQ(code_of(ENOENT), ErrorCode::NotFound);
  EXPECT_EQ(code_of(EEXIST), ErrorCode::AlreadyExists);
  EXPECT_EQ(code_of(EIO), ErrorCode::Io);
}

TEST(Error, KeepsCodeAndHintWhenContextIsAdded) {
  const Error error = Error(ErrorCode::Corrupt, "bad", "try a copy").with_context("a.h5: ");
  EXPECT_EQ(error.code(), ErrorCode::Corrupt);
  EXPECT_STREQ(error.what(), "a.h5: bad");
  EXPECT_EQ(error.hint(), "try a copy");
}

TEST(Error, ExitStatusFollowsTheTable) {
  EXPECT_EQ(exit_status(ErrorCode::InvalidArgument), 2);
  EXPECT_EQ(exit_status(ErrorCode::NoSpace), 3);
  EXPECT_EQ(exit_status(ErrorCode::Corrupt), 4);
  EXPECT_EQ(exit_status(ErrorCode::Unsupported), 6);
  EXPECT_EQ(exit_status(ErrorCode::Internal), 5);
  EXPECT_EQ(to_string(ErrorCode::PeerFailed), "peer failed");
}

TEST(Quote, EscapesControlCharactersAndShortens) {
  EXPECT_EQ(quote("a\n\"b\\"), "\"a\\u000a\\\"b\\\\\"");
  EXPECT_EQ(quote(std::string(300, 'x')).size(), 205u);
}

}  // namespace
}  // namespace unishard
