#include "unishard/format/storage.hpp"

#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "fault_storage.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>

namespace unishard {
namespace {

using test::error_of;
using test::Fails;
using testing::AnyOf;

TEST(PosixStorage, RefusesToCreateOverAFileAndToOpenAFolder) {
  const test::TempDir dir;
  Storage& storage = posix_storage();
  storage.create(dir.path() / "a")->close();
  EXPECT_THAT(error_of([&] { storage.create(dir.path() / "a"); }), Fails(ErrorCode::AlreadyExists));
  EXPECT_THAT(error_of([&] { storage.open(dir.path()); }), Fails(ErrorCode::Corrupt));
  EXPECT_THAT(error_of([&] { storage.open(dir.path() / "b"); }), Fails(ErrorCode::NotFound));
  ASSERT_EQ(::mkfifo((dir.path() / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { storage.open(dir.path() / "fifo"); }), Fails(ErrorCode::Corrupt))
      << "must not wait for a writer";
}

TEST(PosixStorage, ReadingBeyondTheEndIsTruncation) {
  const test::TempDir dir;
  replace_text(posix_storage(), dir.path() / "a", "hello");
  std::array<std::byte, 10> buffer{};
  EXPECT_THAT(error_of([&] { posix_storage().open(dir.path() / "a")->read_at(2, buffer); }),
              Fails(ErrorCode::Corrupt));
  EXPECT_THAT(error_of([&] { read_text(posix_storage(), dir.path() / "a", 4); }),
              Fails(ErrorCode::Corrupt));
}

TEST(PosixStorage, AHardLinkOutlivesTheFirstName) {
  const test::TempDir dir;
  Storage& storage = posix_storage();
  const Path a = dir.path() / "a", b = dir.path() / "b";
  replace_text(storage, a, "hello");
  storage.hard_link(a, b);
  EXPECT_THAT(error_of([&] { storage.hard_link(a, b); }), Fails(ErrorCode::AlreadyExists));
  storage.remove_file(a);
  EXPECT_EQ(read_text(storage, b, 9), "hello");
  EXPECT_THAT(error_of([&] { storage.hard_link(a, dir.path() / "c"); }),
              Fails(ErrorCode::NotFound));
  EXPECT_THAT(error_of([&] { storage.hard_link(dir.path(), dir.path() / "c"); }),
              Fails(ErrorCode::Unsupported));
}

TEST(PosixStorage, ExchangesTwoFoldersAtomically) {
  const test::TempDir dir;
  Storage& storage = posix_storage();
  storage.create_directory(dir.path() / "a");
  storage.create_directory(dir.path() / "b");
  replace_text(storage, dir.path() / "a" / "x", "from a");
  storage.exchange(dir.path() / "a", dir.path() / "b");
  EXPECT_EQ(read_text(storage, dir.path() / "b" / "x", 100), "from a");
  EXPECT_THAT(error_of([&] { storage.rename(dir.path() / "a", dir.path() / "b"); }),
              Fails(ErrorCode::AlreadyExists));
}

TEST(ReplaceText, KeepsTheOldTextWhenAnyStepFails) {
  const test::TempDir dir;
  const Path path = dir.path() / "latest";
  replace_text(posix_storage(), path, "old");
  for (std::uint64_t step = 0;; ++step) {
    test::FaultStorage storage(test::Fault::TornWrite, step);
    if (!test::thrown_by([&] { replace_text(storage, path, "new text"); })) break;
    EXPECT_THAT(read_text(posix_storage(), path, 100), AnyOf("old", "new text"));
  }
  EXPECT_EQ(read_text(posix_storage(), path, 100), "new text");
}

}  // namespace
}  // namespace unishard
