// Compiled with --fmad=false, so that every operation rounds as on the host. The project compiles
// and links this file on machines without a device; it has never run on one.
#include "unishard/format/error.hpp"
#include "unishard/format/partition.hpp"

#include "device/cuda_check.hpp"
#include "runtime/cuda_square_sums.hpp"

#include <algorithm>

namespace unishard::trainer::detail {
namespace {

constexpr unsigned kBlock = static_cast<unsigned>(kShardBlock);
constexpr unsigned kBlockThreads = 128;  // of the first kernel: each squares kBlock / 128 elements
constexpr unsigned kTreeThreads = 1024;
constexpr std::size_t kMostGroups = 64;

struct Levels {
  std::uint8_t of_group[kMostGroups];
};

/// A thread block for each block of gradients: adds the second half of the squares to the first,
/// and so on with what is left. Thread t has the elements t, t + 128, ..., so the first halvings
/// are its own.
__global__ void sum_blocks(const float* gradients, double* block_sums) {
  __shared__ double left[kBlockThreads];
  const unsigned t = threadIdx.x;
  const float* const own = gradients + std::size_t{blockIdx.x} * kBlock + t;
  constexpr unsigned kOwn = kBlock / kBlockThreads;
  double squares[kOwn];
#pragma unroll
  for (unsigned i = 0; i < kOwn; ++i) {
    const auto value = static_cast<double>(own[i * kBlockThreads]);
    squares[i] = value * value;
  }
#pragma unroll
  for (unsigned half = kOwn / 2; half > 0; half /= 2) {
#pragma unroll
    for (unsigned i = 0; i < half; ++i) squares[i] += squares[half + i];
  }
  left[t] = squares[0];
  for (unsigned half = kBlockThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) left[t] += left[half + t];
  }
  if (t == 0) block_sums[blockIdx.x] = left[0];
}

/// A thread block for each group: adds neighbours in place, until the first has the sum of all.
__global__ void sum_groups(double* block_sums, Levels levels, double* sums) {
  std::size_t first = 0;
  for (unsigned i = 0; i < blockIdx.x; ++i) first += std::size_t{1} << levels.of_group[i];
  double* const own = block_sums + first;
  const std::size_t count = std::size_t{1} << levels.of_group[blockIdx.x];
  for (std::size_t distance = 1; distance < count; distance *= 2) {
    const std::size_t pair = distance * 2;
    for (std::size_t at = threadIdx.x * pair; at < count; at += blockDim.x * pair)
      own[at] += own[at + distance];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = own[0];
}

}  // namespace

void sum_squares_on_cuda(const SquareSumArrays& arrays, std::span<const std::uint8_t> levels,
                         void* stream) {
  if (levels.empty()) return;
  if (levels.size() > kMostGroups)
    raise(ErrorCode::Internal, "sum_squares_on_cuda: too many groups");
  Levels all{};
  std::copy(levels.begin(), levels.end(), all.of_group);
  const auto where = static_cast<cudaStream_t>(stream);
  sum_blocks<<<arrays.blocks, kBlockThreads, 0, where>>>(arrays.gradients, arrays.block_sums);
  check(cudaGetLastError(), "starting the sum of squares");
  sum_groups<<<static_cast<unsigned>(levels.size()), kTreeThreads, 0, where>>>(arrays.block_sums,
                                                                               all, arrays.sums);
  check(cudaGetLastError(), "starting the sum of the blocks' squares");
}

}  // namespace unishard::trainer::detail
