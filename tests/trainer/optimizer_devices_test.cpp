// Updates by several threads and by a CUDA device give the bits of one thread.
#include "unishard/format/partition.hpp"
#include "unishard/trainer/runtime.hpp"

#include "device/tensor_bytes.hpp"
#include "optimizer/cuda_update.hpp"
#include "optimizer/host_update.hpp"
#include "optimizer/parallel_update.hpp"
#include "runtime/host_gradients.hpp"
#include "runtime/host_square_sums.hpp"
#include "update_case.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

namespace unishard::trainer {
namespace {

using test::differences;
using test::UpdateCase;
using test::UpdateValues;

constexpr float kScale = 0.37F;

/// An optimizer, and its update from one thread as what is expected.
struct Update {
  UpdateCase how;
  std::unique_ptr<Optimizer> optimizer = make_optimizer(how.optimizer, how.hyper);
  detail::Rule rule = detail::rule_for(*optimizer, how.hyper, 3, kScale);

  template <class Work>
  UpdateValues run(const UpdateValues& before, const Work& work) const {
    UpdateValues result = before;
    work(result.all(*optimizer));
    return result;
  }
  UpdateValues expected(const UpdateValues& before) const {
    return run(before, [&](const auto& arrays) { detail::update_on_host(rule, arrays); });
  }
};

std::vector<Update> updates() {
  std::vector<Update> all;
  for (const UpdateCase& each : test::update_cases()) all.push_back({each});
  return all;
}

TEST(ParallelUpdate, HasTheBitsOfOneThreadForAnyNumber) {
  const UpdateValues before = test::update_values(200'003);
  const int threads_before = at::get_num_threads();
  for (const Update& update : updates()) {
    const UpdateValues expected = update.expected(before);
    for (const int threads : {1, 2, 3, 5}) {
      at::set_num_threads(threads);
      const UpdateValues found = update.run(
          before, [&](const auto& arrays) { detail::update_in_parallel(update.rule, arrays); });
      EXPECT_EQ(differences(found, expected), 0u) << update.how.title << " " << threads;
    }
  }
  at::set_num_threads(threads_before);
}

/// An array of the host, copied to the device and back.
class OnDevice {
 public:
  explicit OnDevice(std::vector<float>& array)
      : host_(at::from_blob(array.data(), {static_cast<std::int64_t>(array.size())}, at::kFloat)),
        device_(host_.to(at::kCUDA)) {}
  float* data() { return device_.data_ptr<float>(); }
  void copy_back() { host_.copy_(device_); }

 private:
  at::Tensor host_, device_;
};

TEST(CudaUpdate, HasTheBitsOfTheHost) {
  if (!detail::has_cuda_update()) GTEST_SKIP() << "this build has no CUDA kernels";
  if (!at::hasCUDA()) GTEST_SKIP() << "LibTorch sees no CUDA device";
  const UpdateValues before = test::update_values(200'003);
  for (const Update& update : updates()) {
    const UpdateValues expected = update.expected(before);
    UpdateValues found = before;
    std::vector<OnDevice> arrays;
    for (auto& array : found.arrays) arrays.emplace_back(array);
    detail::UpdateArrays there{
        .weights = arrays[0].data(), .gradients = arrays[1].data(), .count = before.size()};
    for (std::size_t i = 0; i < update.optimizer->state_names().size(); ++i)
      there.states[i] = arrays[2 + i].data();
    const std::size_t half = before.size() / 2;
    const std::vector<detail::RuleSegment> segments{{0, half, update.rule},
                                                    {half, before.size() - half, update.rule}};
    const at::Tensor rounded =
        at::empty({static_cast<std::int64_t>(before.size())}, at::kBFloat16).to(at::kCUDA);
    detail::update_on_cuda(segments, there, {.values = rounded.data_ptr(), .is_bfloat16 = true},
                           /*stream=*/nullptr);
    for (OnDevice& each : arrays) each.copy_back();
    EXPECT_EQ(differences(found, expected), 0u) << update.how.title;
    const at::Tensor weights = at::from_blob(
        found.arrays[0].data(), {static_cast<std::int64_t>(before.size())}, at::kFloat);
    EXPECT_TRUE(at::equal(rounded.cpu(), weights.to(at::kBFloat16))) << update.how.title;
  }
}

TEST(CudaGradients, HaveTheBitsOfTheHost) {
  if (!detail::has_cuda_update()) GTEST_SKIP() << "this build has no CUDA kernels";
  if (!at::hasCUDA()) GTEST_SKIP() << "LibTorch sees no CUDA device";
  const auto runtime = make_cuda_runtime();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto values = [&](std::int64_t count) { return at::arange(count).sin().to(type); };
    const std::vector<GradientPart> parts{
        {3, values(7)}, {10, values(20'001)}, {30'000, values(5)}};
    std::vector<GradientPart> there = parts;
    for (GradientPart& each : there) each.values = each.values.to(at::kCUDA);
    const at::Tensor sums = at::full({40'000}, 0.125, at::kFloat);
    for (const Gather how : {Gather::Copy, Gather::Begin, Gather::Add}) {
      const at::Tensor expected = how == Gather::Copy ? sums.to(type) : sums.clone();
      const at::Tensor found = expected.to(at::kCUDA);
      detail::gather_gradients_on_host(parts, expected, how);
      runtime->gather_gradients(there, found, how);
      EXPECT_TRUE(at::equal(found.cpu(), expected)) << type << " " << static_cast<int>(how);
    }
  }
}

TEST(CudaSquareSums, HaveTheBitsOfTheHost) {
  if (!detail::has_cuda_update()) GTEST_SKIP() << "this build has no CUDA kernels";
  if (!at::hasCUDA()) GTEST_SKIP() << "LibTorch sees no CUDA device";
  const std::vector<std::uint8_t> levels{0, 12, 5, 1, 13};
  std::int64_t blocks = 0;
  for (const std::uint8_t level : levels) blocks += std::int64_t{1} << level;
  const at::Tensor gradients =
      at::arange(blocks * static_cast<std::int64_t>(kShardBlock), at::kFloat).sin() * 3e-4;
  std::vector<double> expected(levels.size());
  detail::group_square_sums(detail::floats_of(gradients), levels, expected);
  const auto runtime = make_cuda_runtime();
  const at::Tensor sums =
      at::empty({static_cast<std::int64_t>(levels.size())}, at::kDouble).to(at::kCUDA);
  runtime->sum_squares(gradients.to(at::kCUDA), levels, sums);
  const at::Tensor found = sums.cpu();
  for (std::size_t i = 0; i < levels.size(); ++i)
    EXPECT_EQ(found.data_ptr<double>()[i], expected[i]) << i;
}

}  // namespace
}  // namespace unishard::trainer
