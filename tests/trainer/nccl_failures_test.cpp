// Ranks that are missing, errors of other ranks and operations that differ end the waits over NCCL,
// and the error names the operation.
#include "comm/operation_scope.hpp"
#include "expect.hpp"
#include "nccl_threads.hpp"

#include <chrono>
#include <thread>

namespace unishard::test {
namespace {

using namespace trainer;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using trainer::detail::OperationScope;

constexpr const char* kPeerHint = "another rank ended or hangs";

class NcclFailures : public NcclTest {
 protected:
  void TearDown() override {
    EXPECT_LT(steady_clock::now() - begin_, seconds(15)) << "a wait outlived its timeout";
    guarded::take_violations();
    take_nccl_aborts();
    NcclTest::TearDown();
  }
  const steady_clock::time_point begin_ = steady_clock::now();
};

/// Gathers 8 values of each rank, for unit h.0. Returns what the rank gets.
at::Tensor gather(const NcclRank& rank, std::int64_t count = 8) {
  const OperationScope scope("gathering", "unit h.0");
  const at::Tensor mine = rank.device_values(count);
  const at::Tensor all = at::empty({count * rank.group->size()}, mine.options());
  rank.collectives()->all_gather(all, mine);
  return all;
}

TEST_F(NcclFailures, ARankThatDoesNotJoinEndsTheJoin) {
  run_threads(2, [](Communicator& host) {
    if (host.rank() == 0) {
      const c10::DeviceGuard current(guarded::device(0));
      EXPECT_THAT(
          error_of([&] { trainer::detail::join_nccl_group(1, host.duplicate()); }),
          Fails(ErrorCode::PeerFailed, "joining the group: NCCL: no answer within 1 s", kPeerHint));
    } else {
      const auto group = host.duplicate();
      std::array<std::byte, sizeof(ncclUniqueId)> id;
      group->broadcast(id, 0)->wait();
    }
    host.barrier();
  });
}

TEST_F(NcclFailures, AnErrorElsewhereEndsTheJoin) {
  run_threads(2, [](Communicator& host) {
    if (host.rank() == 0) {
      const c10::DeviceGuard current(guarded::device(0));
      EXPECT_THAT(error_of([&] { trainer::detail::join_nccl_group(20, host.duplicate()); }),
                  Fails(ErrorCode::PeerFailed, "joining the group: NCCL: remote error", kPeerHint));
    } else {
      const auto group = host.duplicate();
      std::array<std::byte, sizeof(ncclUniqueId)> id;
      group->broadcast(id, 0)->wait();
      while (nccl_communicators() == 0) std::this_thread::sleep_for(milliseconds(1));
      fail_nccl(ncclRemoteError);
    }
    host.barrier();
  });
}

TEST_F(NcclFailures, ARankThatIsMissingInTheFirstOperationEndsIt) {
  run_nccl_ranks(2,
                 [](const NcclRank& rank) {
                   if (rank.group->rank() == 0) {
                     const auto fails = Fails(
                         ErrorCode::PeerFailed,
                         "gathering unit h.0: all-gather: NCCL: no answer within 1 s", kPeerHint);
                     EXPECT_THAT(error_of([&] { gather(rank); }), fails);
                     EXPECT_THAT(error_of([&] { gather(rank); }), fails);
                     EXPECT_THAT(error_of([&] { rank.collectives()->require_healthy(); }), fails);
                   }
                   rank.group->barrier();
                 },
                 {.timeout_seconds = 1});
}

/// The operation is taken up, and the host waits for the device.
TEST_F(NcclFailures, ARankThatIsMissingLaterEndsTheHostsWait) {
  run_nccl_ranks(2,
                 [](const NcclRank& rank) {
                   gather(rank);
                   if (rank.group->rank() == 0) {
                     const at::Tensor all = gather(rank);
                     rank.collectives()->require_healthy();
                     const auto begin = steady_clock::now();
                     all.cpu();
                     EXPECT_GE(steady_clock::now() - begin, milliseconds(500));
                     EXPECT_THAT(error_of([&] { rank.collectives()->require_healthy(); }),
                                 Fails(ErrorCode::PeerFailed,
                                       "gathering unit h.0: all-gather: NCCL: no answer within 1 s",
                                       kPeerHint));
                   }
                   rank.group->barrier();
                 },
                 {.timeout_seconds = 1});
}

/// The timeout is that of one operation, not of all that have been given.
TEST_F(NcclFailures, ASlowRankIsNotMissing) {
  run_nccl_ranks(2,
                 [](const NcclRank& rank) {
                   gather(rank);
                   const auto collectives = rank.collectives();
                   const at::Tensor mine = rank.device_values(8);
                   const at::Tensor all = at::empty({3, 16}, mine.options());
                   const auto begin = steady_clock::now();
                   for (int i = 0; i < 3; ++i) {
                     if (rank.group->rank() == 1) std::this_thread::sleep_for(milliseconds(900));
                     collectives->all_gather(all[i], mine);
                   }
                   if (rank.group->rank() == 0) {
                     EXPECT_LT(steady_clock::now() - begin, milliseconds(900));
                   }
                   all.cpu();
                   EXPECT_FALSE(thrown_by([&] { collectives->require_healthy(); }));
                   rank.group->barrier();
                 },
                 {.timeout_seconds = 2});
}

/// Waits until the thread that watches has found an error.
Error error_that_is_found(const NcclRank& rank, const at::Tensor& result) {
  result.cpu();
  return error_of([&] { rank.collectives()->require_healthy(); });
}

TEST_F(NcclFailures, AnErrorElsewhereNamesTheOperationThatWaits) {
  run_nccl_ranks(2, [](const NcclRank& rank) {
    gather(rank);
    rank.group->barrier();
    if (rank.group->rank() == 0) {
      const at::Tensor all = gather(rank);
      fail_nccl(ncclRemoteError);
      const auto fails = Fails(ErrorCode::PeerFailed,
                               "gathering unit h.0: all-gather: NCCL: remote error", kPeerHint);
      EXPECT_THAT(error_that_is_found(rank, all), fails);
      EXPECT_THAT(error_of([&] { gather(rank); }), fails);
    }
    rank.group->barrier();
  });
}

TEST_F(NcclFailures, AnErrorElsewhereIsFoundWithoutAnOperation) {
  run_nccl_ranks(2, [](const NcclRank& rank) {
    rank.group->barrier();
    if (rank.group->rank() == 0) fail_nccl(ncclRemoteError);
    rank.group->barrier();
    for (int i = 0; i < 2; ++i)
      EXPECT_THAT(error_of([&] { rank.collectives()->require_healthy(); }),
                  Fails(ErrorCode::PeerFailed, "NCCL: remote error", kPeerHint));
    rank.group->barrier();
  });
}

TEST_F(NcclFailures, AnErrorAtTheCallNamesTheOperation) {
  run_nccl_ranks(1, [](const NcclRank& rank) {
    fail_nccl(ncclRemoteError);
    const OperationScope scope("reducing the gradients of", "unit h.0");
    const at::Tensor mine = rank.device_values(8), sum = mine.clone();
    EXPECT_THAT(error_of([&] { rank.collectives()->reduce_scatter_fold(sum, mine); }),
                Fails(ErrorCode::PeerFailed, "NCCL: remote error", kPeerHint));
  });
}

/// The group of sends and receives belongs to the thread, not to the communicator.
TEST_F(NcclFailures, AnErrorAmongSendsLeavesTheThreadUsable) {
  run_threads(1, [](Communicator& host) {
    const c10::DeviceGuard current(guarded::device(0));
    for (const bool fails : {true, false}) {
      NcclRank rank;
      rank.runtime = make_guarded_runtime();
      rank.group = trainer::detail::join_nccl_group(20, host.duplicate());
      const at::Tensor mine = rank.device_values(8), sum = mine.clone();
      if (fails) fail_nccl(ncclRemoteError);
      const auto error = thrown_by([&] { rank.collectives()->reduce_scatter_fold(sum, mine); });
      EXPECT_EQ(error.has_value(), fails);
    }
  });
}

TEST_F(NcclFailures, RanksThatGiveDifferentSizesGetAnError) {
  for (const bool first : {true, false}) {
    run_nccl_ranks(2, [&](const NcclRank& rank) {
      if (!first) gather(rank);
      EXPECT_THAT(error_of([&] {
                    gather(rank, rank.group->rank() == 0 ? 8 : 16).cpu();
                    rank.collectives()->require_healthy();
                  }),
                  Fails(ErrorCode::Io, "gathering unit h.0: all-gather: NCCL: invalid usage",
                        "NCCL_DEBUG=WARN"));
      rank.group->barrier();
    });
  }
}

TEST_F(NcclFailures, RanksThatGiveDifferentOperationsGetAnError) {
  run_nccl_ranks(2, [](const NcclRank& rank) {
    const at::Tensor mine = rank.device_values(8), sum = rank.device_values(4);
    EXPECT_THAT(error_of([&] {
                  if (rank.group->rank() == 0) {
                    gather(rank, 8);
                  } else {
                    rank.collectives()->reduce_scatter_fold(sum, mine);
                  }
                }),
                Fails(ErrorCode::Io, "NCCL: invalid usage", "NCCL_DEBUG=WARN"));
    rank.group->barrier();
  });
}

TEST_F(NcclFailures, AGroupWhoseOperationsAreDoneIsNotAborted) {
  run_nccl_ranks(2, [](NcclRank& rank) {
    gather(rank).cpu();
    rank.group->barrier();
  });
  EXPECT_EQ(take_nccl_aborts(), 0);
}

TEST_F(NcclFailures, AGroupThatIsDestroyedEndsItsOperations) {
  run_nccl_ranks(2, [](NcclRank& rank) {
    gather(rank);
    if (rank.group->rank() == 0) {
      const at::Tensor all = gather(rank);
      const auto host = rank.group->duplicate();
      rank.group.reset();
      all.cpu();
      host->barrier();
    } else {
      rank.group->duplicate()->barrier();
    }
  });
  EXPECT_GE(take_nccl_aborts(), 1);
}

}  // namespace
}  // namespace unishard::test
