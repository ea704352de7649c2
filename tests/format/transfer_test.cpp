#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/error.hpp"

#include "make_checkpoint.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

namespace unishard {
namespace {

class Counter final : public Observer {
 public:
  void begin(std::string_view, std::uint64_t) override {}
  void advance(std::uint64_t bytes) override { total += bytes; }
  void end() override {}
  std::atomic<std::uint64_t> total{0};
};

TEST(RunBounded, DoesEachPieceOnceAndReportsBytes) {
  Counter counter;
  std::mutex mutex;
  std::multiset<std::size_t> seen;
  run_bounded(1000, {.threads = 4, .buffer_bytes = 64, .observer = &counter},
              [&](std::size_t index, std::span<std::byte> buffer) {
                EXPECT_EQ(buffer.size(), 64u);
                const std::scoped_lock lock(mutex);
                seen.insert(index);
                return std::uint64_t{3};
              });
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_EQ(std::set<std::size_t>(seen.begin(), seen.end()).size(), 1000u);
  EXPECT_EQ(counter.total, 3000u);
}

TEST(RunBounded, RethrowsTheFirstFailureAndStops) {
  std::atomic<int> done{0};
  const auto work = [&](std::size_t index, std::span<std::byte>) -> std::uint64_t {
    if (index == 10) raise(ErrorCode::Io, "piece 10");
    ++done;
    return 0;
  };
  EXPECT_THROW(run_bounded(1'000'000, {.threads = 2}, work), Error);
  EXPECT_LT(done, 1'000'000);
}

TEST(TransferOptions, KeepsBuffersWithinAQuarterOfTheMemory) {
  for (const std::uint64_t mib : {16u, 64u, 1024u}) {
    const auto options = TransferOptions::within(mib << 20, 4);
    EXPECT_LE(options.buffer_bytes * options.threads, (mib << 20) / 4);
  }
  EXPECT_EQ(TransferOptions::within(0, 0).threads, 1u);
}

TEST(CutFragments, KeepsElementsAndOrder) {
  const Catalog catalog = test::example_catalog({});
  const auto fragments = plan_shard(catalog, 0);
  std::uint64_t elements = 0, cut_elements = 0;
  for (const Fragment& fragment : fragments) elements += fragment.range.size();
  for (const Fragment& piece : cut_fragments(catalog, fragments, 1000)) {
    cut_elements += piece.range.size();
    EXPECT_LE(piece.range.size() * size_of(catalog.tensors[piece.tensor].dtype), 1000u);
  }
  EXPECT_EQ(elements, cut_elements);
}

}  // namespace
}  // namespace unishard
