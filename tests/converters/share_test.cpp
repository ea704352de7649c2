#include "unishard/converters/work_split.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace unishard::converters {
namespace {

TEST(WorkSplit, EveryOutputBelongsToOneProcess) {
  const std::vector<std::uint64_t> bytes = {5, 0, 100, 7, 7, 50, 48, 0, 3};
  for (const std::uint32_t size : {1u, 2u, 3u, 20u}) {
    std::vector<int> owners(bytes.size());
    std::vector<std::uint64_t> loads;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      const auto ours = owned(bytes, {.rank = rank, .size = size});
      loads.push_back(0);
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        owners[i] += ours[i];
        loads.back() += ours[i] ? bytes[i] : 0;
      }
    }
    EXPECT_EQ(owners, std::vector<int>(bytes.size(), 1)) << size;
    if (size == 2) {
      EXPECT_EQ(*std::ranges::max_element(loads), 110u) << "220 bytes in all";
    }
  }
  EXPECT_EQ(owned(std::vector<std::uint64_t>{9}, {.rank = 0, .size = 4}), std::vector<bool>{true});
  EXPECT_TRUE(owned({}, {.rank = 0, .size = 4}).empty());
}

TEST(WorkSplit, RunsFollowEachOtherAndAreCutAtUnits) {
  for (const std::uint64_t total : {0u, 1u, 4096u, 100'000u, 1'000'003u}) {
    for (const std::uint32_t size : {1u, 3u, 7u, 64u}) {
      std::uint64_t at = 0;
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        const ByteRun run = owned_run(total, 4096, {.rank = rank, .size = size});
        EXPECT_EQ(run.begin, at);
        EXPECT_TRUE(run.end % 4096 == 0 || run.end == total);
        EXPECT_LE(run.end - run.begin, total / size + 4096);
        at = run.end;
      }
      EXPECT_EQ(at, total);
    }
  }
}

TEST(WorkSplit, EveryElementBeginsInOneRun) {
  for (const std::uint64_t first_byte : {0u, 1u, 17u, 90u, 5000u}) {
    std::uint64_t next = 0;
    for (std::uint32_t rank = 0; rank < 5; ++rank) {
      const ByteRun run = owned_run(10'000, 64, {.rank = rank, .size = 5});
      const auto [begin, end] = run.elements_in(first_byte, 8, 600);
      if (begin == end) continue;
      EXPECT_EQ(begin, next);
      EXPECT_TRUE(run.contains(first_byte + 8 * begin));
      EXPECT_TRUE(run.contains(first_byte + 8 * (end - 1)));
      next = end;
    }
    EXPECT_EQ(next, 600u);
  }
}

}  // namespace
}  // namespace unishard::converters
