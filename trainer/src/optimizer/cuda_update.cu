// Compiled with --fmad=false, so that every operation rounds as on the host. The project compiles
// and links this file on machines without a device; it has never run on one.
#include "device/cuda_check.hpp"
#include "optimizer/cuda_update.hpp"

#include <algorithm>
#include <variant>

namespace unishard::trainer::detail {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::size_t kMostBlocks = 1 << 16;

template <class R>
__global__ void update(R rule, UpdateArrays arrays) {
  const std::size_t stride = std::size_t{blockDim.x} * gridDim.x;
  std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < arrays.count; i += stride) update_element(rule, arrays, i);
}

}  // namespace

bool has_cuda_update() { return true; }

void update_on_cuda(const Rule& rule, const UpdateArrays& arrays, void* stream) {
  if (arrays.count == 0) return;
  const std::size_t blocks = std::min((arrays.count + kThreads - 1) / kThreads, kMostBlocks);
  std::visit(
      [&](const auto& each) {
        update<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            each, arrays);
      },
      rule);
  check(cudaGetLastError(), "starting an optimizer update");
}

}  // namespace unishard::trainer::detail
