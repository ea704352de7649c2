#pragma once
#include "unishard/format/error.hpp"

#include <cuda_runtime_api.h>

#include <string>

namespace unishard::trainer::detail {

inline void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  raise(ErrorCode::Io, std::string(what) + ": CUDA: " + cudaGetErrorString(result));
}

}  // namespace unishard::trainer::detail
