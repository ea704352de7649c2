// Compiled with --fmad=false, so that every operation rounds as on the host. The project compiles
// and links this file on machines without a device; it has never run on one.
#include "device/cuda_check.hpp"
#include "runtime/cuda_gradients.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace unishard::trainer::detail {
namespace {

constexpr unsigned kThreads = 256;

__device__ float widened(float value) { return value; }
__device__ float widened(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ float widened(__half value) { return __half2float(value); }

// What an element of the target gets.
template <class Value>
struct Copy {
  Value* target;
  __device__ void operator()(std::size_t i, Value value) const { target[i] = value; }
};
/// The first summand: zero plus it, which is no negative zero.
template <class Value>
struct Begin {
  float* target;
  __device__ void operator()(std::size_t i, Value value) const {
    target[i] = 0.0F + widened(value);
  }
};
template <class Value>
struct Add {
  float* target;
  __device__ void operator()(std::size_t i, Value value) const {
    target[i] = target[i] + widened(value);
  }
};

template <class Value, class Store>
__global__ void gather(GradientLaunch launch, Store store) {
  const std::uint32_t index = launch.of_block(blockIdx.x);
  const std::size_t begin = launch.begin_of(blockIdx.x, index);
  const std::size_t end = launch.end_of(begin, index);
  const std::size_t first = launch.ranges[index].begin;
  const auto* const values = static_cast<const Value*>(launch.ranges[index].values);
  for (std::size_t i = begin + threadIdx.x; i < end; i += kThreads)
    store(i, values == nullptr ? Value(0.0F) : values[i - first]);
}

template <class Value>
void gather_of(std::span<const GradientSource> sources, const GradientTarget& target,
               cudaStream_t stream) {
  const auto launch_all = [&](auto store) {
    for_each_gradient_launch(sources, target.elements, target.how == Gather::Add,
                             [&](const GradientLaunch& launch) {
                               gather<Value><<<launch.blocks, kThreads, 0, stream>>>(launch, store);
                               check(cudaGetLastError(), "starting to gather gradients");
                             });
  };
  switch (target.how) {
    case Gather::Copy:
      return launch_all(Copy<Value>{static_cast<Value*>(target.values)});
    case Gather::Begin:
      return launch_all(Begin<Value>{static_cast<float*>(target.values)});
    case Gather::Add:
      return launch_all(Add<Value>{static_cast<float*>(target.values)});
  }
}

}  // namespace

void gather_gradients_on_cuda(std::span<const GradientSource> sources, GradientType type,
                              const GradientTarget& target, void* stream) {
  const auto where = static_cast<cudaStream_t>(stream);
  switch (type) {
    case GradientType::Float32:
      return gather_of<float>(sources, target, where);
    case GradientType::Bfloat16:
      return gather_of<__nv_bfloat16>(sources, target, where);
    case GradientType::Float16:
      return gather_of<__half>(sources, target, where);
  }
}

}  // namespace unishard::trainer::detail
