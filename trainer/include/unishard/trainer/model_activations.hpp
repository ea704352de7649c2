#pragma once
// The memory that a micro-batch needs beside the training state: what a language model keeps for
// its backward pass, and what the largest operators write meanwhile.
// Thread safety: pure functions.
#include "unishard/format/dtype.hpp"
#include "unishard/trainer/model_config.hpp"

#include <cstdint>

namespace unishard::trainer {

/// How a rank computes a micro-batch.
struct ActivationPlan {
  std::int64_t samples = 1;
  std::int64_t tokens = 1;  ///< of a sample
  DType compute = DType::Float32;
  bool recomputes = false;  ///< each block; see Recompute
  bool on_cuda = false;
};

/// Returns the bytes at the peak of a training pass, without parameters and their gradients. It
/// follows from what autograd saves for each operator: for a GPT 34 bytes for each token, layer and
/// element of its width in 16 bits, as in Korthikanti et al. 2022, and, where attention is not
/// fused, the matrices of its weights.
std::int64_t activation_bytes(const ModelConfig& model, const ActivationPlan& plan);

}  // namespace unishard::trainer
