#pragma once
// Ranks as threads that talk over NCCL's functions, each with a guarded device of its own. The code
// of nccl_group.cpp and nccl_handle.cpp runs; the library is a stand-in.
#include "comm/groups.hpp"
#include "comm/tensor_collectives.hpp"
#include "device/cuda_stream.hpp"
#include "guarded_device/guarded_device.hpp"
#include "guarded_runtime.hpp"
#include "nccl_stand_in.hpp"
#include "thread_group.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

namespace unishard::test {

/// What a rank has of its own. The group is destroyed before the runtime.
struct NcclRank {
  std::unique_ptr<trainer::Runtime> runtime;
  std::unique_ptr<trainer::Communicator> group;

  std::unique_ptr<trainer::detail::TensorCollectives> collectives(
      trainer::Sum sum = trainer::Sum::Canonical) const {
    return trainer::detail::make_tensor_collectives(*group, runtime->device(), sum);
  }
  /// Returns values that differ between ranks, and whose sums depend on their order.
  at::Tensor values(std::int64_t count, at::ScalarType type = at::kFloat) const {
    const double factor = 1.0 - 0.731 * group->rank();
    return ((at::arange(count, at::kFloat) * 0.37 + 1.0) * factor).to(type);
  }
  /// Returns the same on the rank's device.
  at::Tensor device_values(std::int64_t count, at::ScalarType type = at::kFloat) const {
    return values(count, type).to(runtime->device());
  }
};

struct NcclRankOptions {
  std::uint32_t timeout_seconds = 20;
  std::optional<trainer::Stream> deaf = {};
};

/// Calls body(rank) on `size` ranks at once and rethrows the first failure.
template <class Body>
void run_nccl_ranks(std::uint32_t size, const Body& body, NcclRankOptions options = {}) {
  run_threads(size, [&](trainer::Communicator& host) {
    const int number = static_cast<int>(host.rank());
    const c10::DeviceGuard current(guarded::device(number));
    NcclRank rank;
    rank.runtime = make_guarded_runtime({.device = number, .deaf = options.deaf});
    rank.group = trainer::detail::join_nccl_group(options.timeout_seconds, host.duplicate());
    body(rank);
  });
}

/// Requires that a test leaves no communicator behind.
class NcclTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!trainer::detail::has_cuda_streams())
      GTEST_SKIP() << "this LibTorch does not tell a library the streams of a device";
    guarded::install();
    guarded::take_violations();  // LibTorch frees the graph of a step that failed some time later
  }
  void TearDown() override { EXPECT_EQ(nccl_communicators(), 0); }
};

}  // namespace unishard::test
