// Compiled with --fmad=false, so that every operation rounds as on the host. The project compiles
// and links this file on machines without a device; this form of it has never run on one.
#include "device/cuda_check.hpp"
#include "optimizer/cuda_update.hpp"
#include "optimizer/update_launch.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace unishard::trainer::detail {
namespace {

constexpr unsigned kThreads = 256;

// What happens to a new weight besides.
struct Nothing {
  __device__ void operator()(std::size_t, float) const {}
};
struct ToBfloat16 {
  __nv_bfloat16* values;
  __device__ void operator()(std::size_t i, float weight) const {
    values[i] = __float2bfloat16_rn(weight);
  }
};
struct ToFloat16 {
  __half* values;
  __device__ void operator()(std::size_t i, float weight) const {
    values[i] = __float2half_rn(weight);
  }
};

template <class R, class Round>
__global__ void update(UpdateLaunch<R> launch, UpdateArrays arrays, Round round) {
  const std::uint32_t index = launch.parts.of_block(blockIdx.x);
  const std::size_t begin = launch.parts.begin_of(blockIdx.x, index);
  const std::size_t end = launch.parts.end_of(begin, index);
  const R rule = launch.rules[launch.parts.ranges[index].rule].rule;
  for (std::size_t i = begin + threadIdx.x; i < end; i += kThreads)
    round(i, update_element(rule, arrays, i));
}

template <class Round>
void launch_all(std::span<const RuleSegment> segments, const UpdateArrays& arrays, Round round,
                cudaStream_t stream) {
  for_each_launch_of_any(segments, [&](const auto& launch) {
    update<<<launch.parts.blocks, kThreads, 0, stream>>>(launch, arrays, round);
    check(cudaGetLastError(), "starting an optimizer update");
  });
}

}  // namespace

bool has_cuda_update() { return true; }

void update_on_cuda(std::span<const RuleSegment> segments, const UpdateArrays& arrays,
                    RoundedArray rounded, void* stream) {
  const auto where = static_cast<cudaStream_t>(stream);
  if (rounded.values == nullptr) {
    launch_all(segments, arrays, Nothing{}, where);
  } else if (rounded.is_bfloat16) {
    launch_all(segments, arrays, ToBfloat16{static_cast<__nv_bfloat16*>(rounded.values)}, where);
  } else {
    launch_all(segments, arrays, ToFloat16{static_cast<__half*>(rounded.values)}, where);
  }
}

}  // namespace unishard::trainer::detail
