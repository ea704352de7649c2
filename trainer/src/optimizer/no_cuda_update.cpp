// Replaces cuda_update.cu when configure found no CUDA compiler.
#include "unishard/format/error.hpp"

#include "optimizer/cuda_update.hpp"

namespace unishard::trainer::detail {

bool has_cuda_update() { return false; }

void update_on_cuda(std::span<const RuleSegment>, const UpdateArrays&, RoundedArray, void*) {
  raise(ErrorCode::Unsupported, "this build has no optimizer kernels for CUDA devices",
        "install the CUDA compiler (nvcc) and configure again");
}

}  // namespace unishard::trainer::detail
