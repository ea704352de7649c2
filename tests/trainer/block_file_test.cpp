// The file of training state that does not fit into memory: what it returns, and what it notices.
#include "state/block_file.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/storage.hpp"

#include "expect.hpp"
#include "open_file.hpp"
#include "state/file_array.hpp"
#include "temp_dir.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <thread>

namespace unishard::test {
namespace {

using namespace trainer::detail;
using testing::HasSubstr;

using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kBlock = 4096;

Bytes random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

Bytes all_of(const FileArray& array) {
  Bytes bytes(array.bytes());
  array.read(0, bytes);
  return bytes;
}

class BlockFileTest : public testing::Test {
 protected:
  TempDir folder_;
  std::shared_ptr<BlockFile> file_ = BlockFile::make(posix_storage(), folder_.path(), kBlock);
};

TEST_F(BlockFileTest, HasNoNameAndGivesItsSpaceBackWithTheLastBlock) {
  FileArray array(file_, 10 * kBlock);
  array.write(0, random_bytes(10 * kBlock, 1));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_FALSE(path_of_open_file(folder_.path()).empty());
}

/// Returns how many pages of a file are in the page cache.
std::size_t cached_pages(const Path& path) {
  const auto file = posix_storage().open(path);
  const std::size_t bytes = file->size(), page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  ::close(descriptor);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
  std::vector<unsigned char> resident((bytes + page - 1) / page);
  const int result = ::mincore(memory, bytes, resident.data());
  ::munmap(memory, bytes);
  if (result != 0) throw std::runtime_error("mincore failed");
  return static_cast<std::size_t>(
      std::ranges::count_if(resident, [](unsigned char each) { return (each & 1) != 0; }));
}

TEST_F(BlockFileTest, LeavesThePageCacheAlone) {
  if (!posix_storage().create_unnamed(folder_.path())->bypasses_cache())
    GTEST_SKIP() << folder_.path() << " has no direct I/O";
  FileArray array(file_, 64 * kBlock);
  const Bytes expected = random_bytes(array.bytes(), 1);
  array.write(0, expected);
  EXPECT_EQ(all_of(array), expected);
  EXPECT_EQ(cached_pages(path_of_open_file(folder_.path())), 0u);
}

TEST_F(BlockFileTest, ReturnsWhatWasWrittenInPartsOfAnySize) {
  const std::size_t size = 7 * kBlock + 1234;
  FileArray array(file_, size);
  Bytes expected(size);
  EXPECT_EQ(all_of(array), expected) << "it begins as zeros";
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    const std::size_t begin = random() % size, count = 1 + random() % (size - begin);
    const Bytes fresh = random_bytes(count, random());
    array.write(begin, fresh);
    std::ranges::copy(fresh, expected.begin() + static_cast<std::ptrdiff_t>(begin));
    const std::size_t from = random() % size;
    Bytes part(1 + random() % (size - from));
    array.read(from, part);
    ASSERT_TRUE(
        std::equal(part.begin(), part.end(), expected.begin() + static_cast<std::ptrdiff_t>(from)));
  }
  EXPECT_EQ(all_of(array), expected);
}

TEST_F(BlockFileTest, ThreadsMayWritePartsOfOneBlock) {
  constexpr std::size_t kParts = 64;
  FileArray array(file_, 2 * kBlock);
  const Bytes expected = random_bytes(array.bytes(), 3);
  const std::size_t part = array.bytes() / kParts;
  std::vector<std::jthread> threads;
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t i = thread; i < kParts; i += 4)
        array.write(i * part, std::span(expected).subspan(i * part, part));
    });
  }
  threads.clear();
  EXPECT_EQ(all_of(array), expected);
}

TEST_F(BlockFileTest, ASnapshotKeepsItsValuesAndGivesTheSpaceBack) {
  FileArray array(file_, 5 * kBlock);
  const Bytes first = random_bytes(array.bytes(), 1), second = random_bytes(array.bytes(), 2);
  for (int round = 0; round < 20; ++round) {
    array.write(0, first);
    const auto snapshot = array.snapshot();
    array.write(kBlock / 2, std::span(second).subspan(kBlock / 2, 2 * kBlock));
    array.write(0, second);
    EXPECT_EQ(all_of(*snapshot), first);
    EXPECT_EQ(all_of(array), second);
  }
  const Path path = path_of_open_file(folder_.path());
  EXPECT_LE(posix_storage().open(path)->size(), 12 * kBlock) << "of twenty rounds";
}

/// Of blocks that are equally many for each thread and that are not, the last one part of a block.
TEST_F(BlockFileTest, SeveralThreadsTransferTheSameBytes) {
  for (const std::size_t threads : {2u, 3u, 40u}) {
    const auto file = BlockFile::make(posix_storage(), folder_.path(), kBlock, threads);
    for (const std::uint64_t bytes : {std::uint64_t{100}, 12 * kBlock, 17 * kBlock + 1}) {
      FileArray array(file, bytes);
      const Bytes expected = random_bytes(bytes, threads + bytes);
      array.write(0, expected);
      EXPECT_EQ(all_of(array), expected) << threads << " threads";
    }
  }
}

/// One of the threads finds it, and the caller is told when all have ended.
TEST_F(BlockFileTest, AFlippedBitIsFoundByEachOfSeveralThreads) {
  file_.reset();
  file_ = BlockFile::make(posix_storage(), folder_.path(), kBlock, 4);
  FileArray array(file_, 8 * kBlock);
  const Bytes expected = random_bytes(array.bytes(), 5);
  array.write(0, expected);
  const Path path = path_of_open_file(folder_.path());
  for (std::uint64_t block = 0; block < 8; ++block) {
    flip_bit(path, block * kBlock + 7, 3);
    EXPECT_THAT(error_of([&] { all_of(array); }), Fails(ErrorCode::Corrupt)) << block;
    flip_bit(path, block * kBlock + 7, 3);
  }
  EXPECT_EQ(all_of(array), expected);
}

TEST_F(BlockFileTest, TenThousandFlippedBitsAreFound) {
  FileArray array(file_, 64 * kBlock);
  const Bytes expected = random_bytes(array.bytes(), 5);
  array.write(0, expected);
  const Path path = path_of_open_file(folder_.path());
  ASSERT_FALSE(path.empty());
  std::mt19937_64 random(11);
  int found = 0;
  for (int flip = 0; flip < 10'000; ++flip) {
    const std::uint64_t byte = random() % array.bytes();
    const int bit = static_cast<int>(random() % 8);
    flip_bit(path, byte, bit);
    Bytes block(kBlock);
    const Error error = error_of([&] { array.read(byte / kBlock * kBlock, block); });
    found += error.code() == ErrorCode::Corrupt ? 1 : 0;
    flip_bit(path, byte, bit);
  }
  EXPECT_EQ(found, 10'000);
  EXPECT_EQ(all_of(array), expected);
}

TEST_F(BlockFileTest, SaysWhereSpaceIsMissing) {
  const Error error = error_of([&] { FileArray(file_, std::uint64_t{1} << 55); });
  EXPECT_THAT(error, Fails(ErrorCode::NoSpace));
  EXPECT_THAT(error.what(), HasSubstr(folder_.path().string()));
  EXPECT_THAT(message_and_hint(error), HasSubstr("nvme_path"));
  FileArray small(file_, kBlock);
  small.write(0, random_bytes(kBlock, 1));
}

TEST_F(BlockFileTest, AFolderThatCannotBeMadeIsNamed) {
  const Path file = folder_.path() / "file";
  replace_text(posix_storage(), file, "x");
  const Error error = error_of([&] { BlockFile::make(posix_storage(), file / "below", kBlock); });
  EXPECT_THAT(error.what(), HasSubstr("nvme_path " + (file / "below").string()));
}

}  // namespace
}  // namespace unishard::test
