// Replaces cuda_square_sums.cu when configure found no CUDA compiler.
#include "unishard/format/error.hpp"

#include "runtime/cuda_square_sums.hpp"

namespace unishard::trainer::detail {

void sum_squares_on_cuda(const SquareSumArrays&, std::span<const std::uint8_t>, void*) {
  raise(ErrorCode::Unsupported, "this build has no kernels for CUDA devices",
        "install the CUDA compiler (nvcc) and configure again");
}

}  // namespace unishard::trainer::detail
