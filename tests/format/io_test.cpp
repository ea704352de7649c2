// Large files go past the page cache: every byte must come out as it went in, whatever the
// alignment, the order, the number of threads and the memory.
#include "unishard/format/io.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/storage.hpp"

#include "expect.hpp"
#include "storage/write_behind.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace unishard {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

struct Way {
  IoMode mode;
  std::uint64_t write_buffer_bytes;
};

std::string random_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes;
  bytes.reserve(count + sizeof(std::uint64_t));
  while (bytes.size() < count) {
    const std::uint64_t word = random();
    bytes.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  bytes.resize(count);
  return bytes;
}

std::span<const std::byte> part(const std::string& bytes, std::uint64_t begin, std::uint64_t end) {
  return std::as_bytes(std::span(bytes)).subspan(begin, end - begin);
}

/// [0, bytes) cut at random places, in random order.
std::vector<std::pair<std::uint64_t, std::uint64_t>> random_cuts(std::uint64_t bytes, int count,
                                                                 std::mt19937& random) {
  std::vector<std::uint64_t> cuts = {0, bytes};
  for (int i = 0; i < count; ++i) cuts.push_back(random() % bytes);
  std::ranges::sort(cuts);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> parts;
  for (std::size_t i = 1; i < cuts.size(); ++i) parts.emplace_back(cuts[i - 1], cuts[i]);
  std::ranges::shuffle(parts, random);
  return parts;
}

class Io : public testing::TestWithParam<Way> {
 protected:
  Io() : before_(io_options()) {
    configure_io({GetParam().mode, GetParam().write_buffer_bytes, 4 * kMiB});
  }
  ~Io() override { configure_io(before_); }

  const test::TempDir dir_;
  const Path path_ = dir_.path() / "file";

 private:
  const IoOptions before_;
};

TEST_P(Io, PartsInAnyOrderFromSeveralThreadsBecomeTheFile) {
  const std::string bytes = random_bytes(11 * kMiB + 123, 1);
  std::mt19937 random(2);
  const auto parts = random_cuts(bytes.size(), 2000, random);
  const auto file = posix_storage().create(path_);
  file->reserve(bytes.size());
  {
    constexpr std::size_t kThreads = 8;
    std::vector<std::jthread> threads;
    for (std::size_t first = 0; first < kThreads; ++first) {
      threads.emplace_back([&, first] {
        for (std::size_t i = first; i < parts.size(); i += kThreads)
          file->write_at(parts[i].first, part(bytes, parts[i].first, parts[i].second));
      });
    }
  }
  file->sync();
  EXPECT_TRUE(test::read_file(path_) == bytes) << "after sync()";
  file->close();
  EXPECT_TRUE(test::read_file(path_) == bytes);
}

TEST_P(Io, ReadsSeeWhatWasWrittenAndTheLastWriteCounts) {
  std::string bytes = random_bytes(7 * kMiB + 1, 3);
  const auto file = posix_storage().create(path_);
  file->reserve(bytes.size());
  file->write_at(0, part(bytes, 0, bytes.size()));
  std::mt19937 random(4);
  std::string out;
  for (int round = 0; round < 20; ++round) {
    const std::string fresh =
        random_bytes(random() % (3 * kMiB), 100 + static_cast<std::uint32_t>(round));
    const std::uint64_t at = random() % (bytes.size() - fresh.size());
    std::ranges::copy(fresh, bytes.begin() + static_cast<std::ptrdiff_t>(at));
    file->write_at(at, part(fresh, 0, fresh.size()));
    const std::uint64_t begin = random() % bytes.size();
    out.resize(random() % (bytes.size() - begin));
    file->read_at(begin, std::as_writable_bytes(std::span(out)));
    ASSERT_TRUE(out == bytes.substr(begin, out.size())) << "round " << round;
  }
  file->close();
  EXPECT_TRUE(test::read_file(path_) == bytes);
}

TEST_P(Io, AnyPartIsReadIntoMemoryOfAnyAlignment) {
  const std::string bytes = random_bytes(9 * kMiB + 77, 5);
  test::write_file(path_, bytes);
  const auto file = posix_storage().open(path_);
  std::mt19937 random(6);
  std::vector<std::byte> memory(bytes.size() + 8192);
  for (int round = 0; round < 30; ++round) {
    const bool aligned = round % 3 == 0;
    std::uint64_t begin = random() % bytes.size(), skip = random() % 4096;
    if (aligned) begin = begin / 4096 * 4096;
    if (aligned) skip = (4096 - reinterpret_cast<std::uintptr_t>(memory.data()) % 4096) % 4096;
    const std::uint64_t count = random() % (bytes.size() - begin) + 1;
    const std::span<std::byte> out = std::span(memory).subspan(skip, count);
    file->read_at(begin, out);
    ASSERT_EQ(std::memcmp(out.data(), bytes.data() + begin, count), 0) << "round " << round;
  }
}

TEST_P(Io, AFileThatEndsTooEarlyIsTruncated) {
  test::write_file(path_, random_bytes(3 * kMiB + 5, 7));
  const auto file = posix_storage().open(path_);
  std::vector<std::byte> out(2 * kMiB);
  for (const std::uint64_t begin : {kMiB + 6, 3 * kMiB, 3 * kMiB + 5, 9 * kMiB}) {
    EXPECT_THAT(test::error_of([&] { file->read_at(begin, out); }),
                test::Fails(ErrorCode::Corrupt, "ends at byte 3145733"))
        << begin;
  }
}

TEST_P(Io, AnUpdatedFileKeepsItsOtherBytes) {
  std::string bytes = random_bytes(6 * kMiB, 8);
  test::write_file(path_, bytes);
  {
    const auto file = posix_storage().open_for_update(path_);
    file->write_at(2 * kMiB - 3, part("abcdef", 0, 6));
    file->close();
  }
  bytes.replace(2 * kMiB - 3, 6, "abcdef");
  EXPECT_TRUE(test::read_file(path_) == bytes);
}

TEST_P(Io, SpaceIsRefusedBeforeAnythingIsWritten) {
  const auto file = posix_storage().create(path_);
  const std::uint64_t more_than_all = std::filesystem::space(dir_.path()).capacity + kMiB;
  EXPECT_THAT(test::error_of([&] { file->reserve(more_than_all); }),
              test::Fails(ErrorCode::NoSpace, path_.string()));
  EXPECT_EQ(file->size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Ways, Io,
                         testing::Values(Way{IoMode::Auto, 64 * kMiB},
                                         Way{IoMode::Direct, 64 * kMiB},
                                         Way{IoMode::Direct, 4 * kMiB},
                                         Way{IoMode::Direct, 2 * kMiB}, Way{IoMode::Direct, 0},
                                         Way{IoMode::Buffered, 64 * kMiB}));

TEST(WriteBehind, WhatWasLostIsToldToWhoeverFlushes) {
  int failures = 0;
  WriteBehind writes(
      {.file_bytes = 8 * kMiB, .held_bytes = 4 * kMiB, .is_zero = true},
      [&](std::uint64_t, std::span<const std::byte>) {
        if (failures++ == 0) raise(ErrorCode::Io, "the disk is broken");
      },
      [](std::uint64_t, std::span<const std::byte>) {});
  const std::string bytes = random_bytes(2 * kMiB, 10);
  EXPECT_THROW(writes.write(0, part(bytes, 0, bytes.size())), Error);
  EXPECT_NO_THROW(writes.write(2 * kMiB, part(bytes, 0, bytes.size())));
  EXPECT_THROW(writes.flush(0, 8 * kMiB), Error) << "the first block is not in the file";
}

TEST(IoModes, HaveNames) {
  EXPECT_EQ(io_mode_from_name("auto"), IoMode::Auto);
  EXPECT_EQ(io_mode_from_name("direct"), IoMode::Direct);
  EXPECT_EQ(io_mode_from_name("buffered"), IoMode::Buffered);
  EXPECT_EQ(io_mode_from_name("Direct"), std::nullopt);
}

TEST(IoModes, AFileSystemWithoutDirectAccessIsUsedWithoutIt) {
  const Path memory = "/dev/shm";
  if (posix_storage().kind(memory) != EntryKind::Directory) GTEST_SKIP() << "no /dev/shm";
  const test::TempDir dir(memory);
  configure_io({.mode = IoMode::Direct});
  const std::string bytes = random_bytes(5 * kMiB + 9, 9);
  {
    const auto file = posix_storage().create(dir.path() / "file");
    file->reserve(bytes.size());
    file->write_at(0, part(bytes, 0, bytes.size()));
    file->close();
  }
  std::string out(bytes.size(), '\0');
  posix_storage().open(dir.path() / "file")->read_at(0, std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(out == bytes);
  configure_io({});
}

}  // namespace
}  // namespace unishard
