#include "runtime/host_gradients.hpp"

#include <ATen/core/grad_mode.h>

namespace unishard::trainer::detail {

void gather_gradients_on_host(std::span<const GradientPart> parts, const at::Tensor& to,
                              Gather how) {
  const at::NoGradGuard no_grad;
  if (how == Gather::Begin) to.zero_();
  std::int64_t done = 0;
  for (const auto& [begin, values] : parts) {
    const at::Tensor place = to.narrow(0, begin, values.numel());
    if (how == Gather::Copy) {
      to.narrow(0, done, begin - done).zero_();
      place.copy_(values);
    } else {
      place.add_(values);
    }
    done = begin + values.numel();
  }
  if (how == Gather::Copy) to.narrow(0, done, to.numel() - done).zero_();
}

}  // namespace unishard::trainer::detail
