// Updates by several threads and by a CUDA device give the bits of one thread.
#include "optimizer/cuda_update.hpp"
#include "optimizer/host_update.hpp"
#include "optimizer/parallel_update.hpp"
#include "update_case.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

namespace unishard::trainer {
namespace {

using test::differences;
using test::UpdateCase;
using test::UpdateValues;

constexpr float kScale = 0.37F;

/// The arrays after one update, and the new weights in 16 bits.
struct Updated {
  UpdateValues values;
  std::vector<std::uint16_t> rounded;
};

/// Every optimizer with one rounding, and the update from one thread as what is expected.
struct Update {
  UpdateCase how;
  detail::Rounding rounding;
  std::unique_ptr<Optimizer> optimizer = make_optimizer(how.optimizer, how.hyper);
  detail::Rule rule = detail::rule_for(*optimizer, how.hyper, 3, kScale);

  template <class Work>
  Updated run(const UpdateValues& before, const Work& work) const {
    Updated result{before, std::vector<std::uint16_t>(before.size())};
    detail::UpdateArrays arrays = result.values.all(*optimizer);
    arrays.rounding = rounding;
    if (rounding != detail::Rounding::None) arrays.rounded = result.rounded.data();
    work(arrays);
    return result;
  }
  Updated expected(const UpdateValues& before) const {
    return run(before, [&](const auto& arrays) { detail::update_on_host(rule, arrays); });
  }
};

std::vector<Update> updates() {
  std::vector<Update> all;
  for (const UpdateCase& each : test::update_cases())
    for (const auto rounding :
         {detail::Rounding::None, detail::Rounding::BFloat16, detail::Rounding::Float16})
      all.push_back({each, rounding});
  return all;
}

TEST(ParallelUpdate, HasTheBitsOfOneThreadForAnyNumber) {
  const UpdateValues before = test::update_values(200'003);
  const int threads_before = at::get_num_threads();
  for (const Update& update : updates()) {
    const Updated expected = update.expected(before);
    for (const int threads : {1, 2, 3, 5}) {
      at::set_num_threads(threads);
      const Updated found = update.run(
          before, [&](const auto& arrays) { detail::update_in_parallel(update.rule, arrays); });
      EXPECT_EQ(differences(found.values, expected.values), 0u)
          << update.how.title << " " << threads;
      EXPECT_TRUE(found.rounded == expected.rounded) << update.how.title << " " << threads;
    }
  }
  at::set_num_threads(threads_before);
}

/// An array of the host, copied to the device and back.
class OnDevice {
 public:
  template <class T>
  OnDevice(std::vector<T>& array, at::ScalarType type)
      : host_(at::from_blob(array.data(), {static_cast<std::int64_t>(array.size())}, type)),
        device_(host_.to(at::kCUDA)) {}
  template <class T>
  T* data() {
    return static_cast<T*>(device_.data_ptr());
  }
  void copy_back() { host_.copy_(device_); }

 private:
  at::Tensor host_, device_;
};

TEST(CudaUpdate, HasTheBitsOfTheHost) {
  if (!detail::has_cuda_update()) GTEST_SKIP() << "this build has no CUDA kernels";
  if (!at::hasCUDA()) GTEST_SKIP() << "LibTorch sees no CUDA device";
  const UpdateValues before = test::update_values(200'003);
  for (const Update& update : updates()) {
    const Updated expected = update.expected(before);
    Updated found{before, std::vector<std::uint16_t>(before.size())};
    std::vector<OnDevice> arrays;
    for (auto& array : found.values.arrays) arrays.emplace_back(array, at::kFloat);
    arrays.emplace_back(found.rounded, at::kShort);
    detail::UpdateArrays there{.weights = arrays[0].data<float>(),
                               .gradients = arrays[1].data<float>(),
                               .count = before.size()};
    for (std::size_t i = 0; i < update.optimizer->state_names().size(); ++i)
      there.states[i] = arrays[2 + i].data<float>();
    there.rounding = update.rounding;
    there.rounded = arrays[4].data<std::uint16_t>();
    detail::update_on_cuda(update.rule, there, /*stream=*/nullptr);
    for (OnDevice& each : arrays) each.copy_back();
    EXPECT_EQ(differences(found.values, expected.values), 0u) << update.how.title;
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (std::isnan(expected.values.arrays[0][i])) continue;
      ASSERT_EQ(found.rounded[i], expected.rounded[i]) << update.how.title << " " << i;
    }
  }
}

}  // namespace
}  // namespace unishard::trainer
