#include "state/square_sums.hpp"

#include "unishard/format/partition.hpp"
#include "unishard/trainer/fold.hpp"

#include "device/tensor_bytes.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <vector>

namespace unishard::trainer::detail {
namespace {

/// Does what block_square_sums() does, with the same bits, on any device.
at::Tensor square_sums_on_device(const at::Tensor& gradients) {
  at::Tensor squares = gradients.view({-1, static_cast<std::int64_t>(kShardBlock)}).to(at::kDouble);
  squares.mul_(squares);
  for (std::int64_t half = squares.size(1) / 2; half > 0; half /= 2)
    squares = squares.narrow(1, 0, half) + squares.narrow(1, half, half);
  return squares.reshape({-1});
}

}  // namespace

at::Tensor square_sums(const at::Tensor& gradients) {
  const at::NoGradGuard no_grad;
  constexpr std::int64_t kAtOnce = std::int64_t{4} << 20;  // elements that are widened at a time
  const std::int64_t blocks = gradients.numel() / static_cast<std::int64_t>(kShardBlock);
  at::Tensor sums = at::empty({blocks}, gradients.options().dtype(at::kDouble));
  if (blocks == 0) return sums;
  if (gradients.is_cpu()) {
    block_square_sums(floats_of(gradients),
                      {sums.data_ptr<double>(), static_cast<std::size_t>(blocks)});
    return sums;
  }
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : gradients.split(kAtOnce))
    parts.push_back(square_sums_on_device(part));
  return at::cat(parts);
}

}  // namespace unishard::trainer::detail
