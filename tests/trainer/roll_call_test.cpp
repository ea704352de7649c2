// Which processes are the ranks of one job, asked of threads that share a store.
#include "comm/roll_call.hpp"

#include "expect.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <future>
#include <vector>

namespace unishard::test {
namespace {

using trainer::detail::call_roll;

struct Caller {
  std::uint32_t rank, world_size;
};

/// Returns the error of each caller, nullopt for those that have none.
std::vector<std::optional<Error>> errors_of(const std::vector<Caller>& callers) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(std::chrono::seconds(1));
  std::vector<std::future<std::optional<Error>>> running;
  for (const Caller& caller : callers) {
    running.push_back(std::async(std::launch::async, [caller, store] {
      return thrown_by([&] { call_roll(*store, caller.rank, caller.world_size); });
    }));
  }
  std::vector<std::optional<Error>> errors;
  for (auto& each : running) errors.push_back(each.get());
  return errors;
}

void expect_all_fail(const std::vector<Caller>& callers, ErrorCode code, const char* says) {
  for (const auto& error : errors_of(callers))
    EXPECT_THAT(error, testing::Optional(Fails(code, says)));
}

TEST(RollCall, RanksOfOneJobGoOn) {
  for (const auto& error : errors_of({{0, 3}, {2, 3}, {1, 3}})) EXPECT_FALSE(error);
}

TEST(RollCall, MissingRanksAreNamed) {
  expect_all_fail({{0, 4}, {2, 4}}, ErrorCode::PeerFailed, "ranks 1, 3 of 4 did not answer");
  expect_all_fail({{0, 2}}, ErrorCode::PeerFailed, "rank 1 of 2 did not answer");
}

TEST(RollCall, TwoProcessesWithOneRankAreAnErrorOfBoth) {
  expect_all_fail({{0, 2}, {0, 2}}, ErrorCode::Mismatch, "two processes are rank 0");
}

TEST(RollCall, OtherWorldSizesAreAnErrorOfAll) {
  expect_all_fail({{0, 2}, {1, 3}}, ErrorCode::Mismatch, "world size");
}

}  // namespace
}  // namespace unishard::test
