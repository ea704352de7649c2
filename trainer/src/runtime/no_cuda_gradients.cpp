// Replaces cuda_gradients.cu when configure found no CUDA compiler.
#include "unishard/format/error.hpp"

#include "runtime/cuda_gradients.hpp"

namespace unishard::trainer::detail {

void gather_gradients_on_cuda(std::span<const GradientSource>, GradientType, const GradientTarget&,
                              void*) {
  raise(ErrorCode::Unsupported, "this build has no kernels for CUDA devices",
        "install the CUDA compiler (nvcc) and configure again");
}

}  // namespace unishard::trainer::detail
