// The collectives over NCCL give the host's bits, and misuse of memory and streams is found.
#include "unishard/trainer/rank_environment.hpp"

#include "comm/groups.hpp"
#include "expect.hpp"
#include "nccl_threads.hpp"

#include <fmt/format.h>

namespace unishard::test {
namespace {

using namespace trainer;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using trainer::Stream;

constexpr at::ScalarType kSummed[] = {at::kFloat, at::kBFloat16, at::kHalf};

class NcclCollectives : public NcclTest, public testing::WithParamInterface<std::uint32_t> {
 protected:
  static std::uint32_t world() { return GetParam(); }
  void TearDown() override {
    EXPECT_THAT(guarded::take_violations(), IsEmpty());
    NcclTest::TearDown();
  }
};
INSTANTIATE_TEST_SUITE_P(World, NcclCollectives, testing::Values(1u, 2u, 4u),
                         testing::PrintToStringParamName());

TEST_P(NcclCollectives, GatherTheBytesOfEveryType) {
  run_nccl_ranks(world(), [](const NcclRank& rank) {
    const auto collectives = rank.collectives();
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kChar, at::kLong}) {
      const at::Tensor mine = rank.device_values(100, type);
      const at::Tensor all = at::empty({world() * std::int64_t{100}}, mine.options());
      collectives->all_gather(all, mine);
      const at::Tensor expected = at::empty(all.sizes(), at::device(at::kCPU).dtype(type));
      trainer::detail::make_tensor_collectives(*rank.group, at::kCPU, Sum::Canonical)
          ->all_gather(expected, rank.values(100, type));
      EXPECT_TRUE(at::equal(all.cpu(), expected)) << type;
    }
    collectives->require_healthy();
  });
}

TEST_P(NcclCollectives, GatherARanksOwnPartInPlace) {
  run_nccl_ranks(world(), [](const NcclRank& rank) {
    const std::int64_t number = rank.group->rank();
    const at::Tensor all = at::full({std::int64_t{world()}, 10}, -1.0f).to(rank.runtime->device());
    all[number].fill_(static_cast<float>(number));
    rank.collectives()->all_gather(all, all[number]);
    for (std::int64_t r = 0; r < world(); ++r)
      EXPECT_TRUE(at::equal(all[r].cpu(), at::full({10}, static_cast<float>(r)))) << r;
  });
}

/// Returns the sum that a rank's part gets on the device, and on the host in rank order.
std::pair<at::Tensor, at::Tensor> sums(const NcclRank& rank, Sum sum, at::ScalarType type) {
  const std::int64_t count = 33;
  const at::Tensor in = rank.values(count * rank.group->size(), type);
  const at::Tensor before = at::arange(count, at::kFloat) * 0.01;
  const at::Tensor there = before.to(rank.runtime->device()), here = before.clone();
  rank.collectives(sum)->reduce_scatter_fold(there, in.to(rank.runtime->device()));
  trainer::detail::make_tensor_collectives(*rank.group, at::kCPU, Sum::Canonical)
      ->reduce_scatter_fold(here, in);
  return {there.cpu(), here};
}

TEST_P(NcclCollectives, CanonicalSumsHaveTheHostsBits) {
  run_nccl_ranks(world(), [](const NcclRank& rank) {
    for (const at::ScalarType type : kSummed) {
      const auto [there, here] = sums(rank, Sum::Canonical, type);
      EXPECT_TRUE(at::equal(there, here)) << type;
    }
  });
}

TEST_P(NcclCollectives, FastSumsAreAsCloseAsTheirTypeAllows) {
  run_nccl_ranks(world(), [](const NcclRank& rank) {
    for (const at::ScalarType type : kSummed) {
      const auto [there, here] = sums(rank, Sum::Fast, type);
      const double digits = type == at::kFloat ? 1e-6 : type == at::kHalf ? 1e-3 : 1e-2;
      const double largest = rank.values(33 * rank.group->size()).abs().max().item<double>();
      EXPECT_LE((there - here).abs().max().item<double>(), 8 * digits * largest) << type;
    }
  });
}

class NcclMisuse : public NcclTest {};

/// The tests above would notice a canonical sum that NCCL makes.
TEST_F(NcclMisuse, FastSumsHaveAnotherOrder) {
  run_nccl_ranks(4, [](const NcclRank& rank) {
    const auto [there, here] = sums(rank, Sum::Fast, at::kFloat);
    EXPECT_FALSE(at::equal(there, here));
  });
}

/// Returns the message of what ends `body` on one rank.
template <class Body>
std::string message_of(const Body& body) {
  std::string message;
  run_nccl_ranks(1, [&](const NcclRank& rank) {
    try {
      body(rank);
    } catch (const std::exception& error) {
      message = error.what();
    }
  });
  guarded::take_violations();
  return message;
}

TEST_F(NcclMisuse, WorkThatDoesNotWaitForAResultIsFound) {
  EXPECT_THAT(message_of([](const NcclRank& rank) {
                const at::Tensor mine = rank.device_values(8), all = at::empty_like(mine);
                const auto given = rank.runtime->record(Stream::Compute);
                rank.runtime->wait(Stream::Communication, given);
                rank.runtime->run(Stream::Communication, "gather",
                                  [&] { rank.collectives()->all_gather(all, mine); });
                all.cpu();
              }),
              AllOf(HasSubstr("guarded: RACE"), HasSubstr("NCCL's all-gather")));
}

TEST_F(NcclMisuse, ACollectiveThatDoesNotWaitForItsInputIsFound) {
  EXPECT_THAT(message_of([](const NcclRank& rank) {
                const at::Tensor sum = rank.device_values(8), mine = sum * 2;
                rank.runtime->run(Stream::Communication, "reduce", [&] {
                  rank.collectives(Sum::Fast)->reduce_scatter_fold(sum, mine);
                });
              }),
              AllOf(HasSubstr("guarded: RACE"), HasSubstr("NCCL's reduce-scatter")));
}

TEST_F(NcclMisuse, MemoryThatIsNotTheDevicesIsFound) {
  EXPECT_THAT(message_of([](const NcclRank& rank) {
                rank.collectives()->all_gather(rank.device_values(8), rank.values(8));
              }),
              HasSubstr("is given memory that is not a device's"));
  EXPECT_THAT(message_of([](const NcclRank& rank) {
                rank.collectives()->all_gather(rank.device_values(7), rank.device_values(8));
              }),
              HasSubstr("is given 32 bytes that reach out of block"));
  EXPECT_THAT(message_of([](const NcclRank& rank) {
                const at::Tensor all = rank.device_values(9);
                rank.collectives()->all_gather(all.narrow(0, 0, 8), all.narrow(0, 1, 8));
              }),
              HasSubstr("overlap"));
}

TEST_F(NcclMisuse, ARankWithoutACudaDeviceIsRefused) {
  const RankEnvironment environment{.rank = 0, .world_size = 1, .local_rank = 1000};
  EXPECT_THAT(error_of([&] {
                trainer::detail::make_nccl_group(environment, {}, make_single_communicator());
              }),
              Fails(ErrorCode::Unsupported, "none for local rank 1000", "gloo"));
}

}  // namespace
}  // namespace unishard::test
