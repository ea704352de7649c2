#pragma once
// The arithmetic of a language model: the additions and multiplications of its matrix products, as
// DeepSpeed's profiler and figures of model FLOPs utilization count them. Norms, activations and
// embeddings are not counted.
// Thread safety: pure functions.
#include "unishard/trainer/model_config.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::trainer {

struct UnitFlops {
  std::string unit;             ///< name of a module: "h.0", "model.layers.0", "lm_head"
  std::int64_t parameters = 0;  ///< elements of its matrices
  double products = 0;          ///< products with the matrices
  double attention = 0;         ///< products of queries, keys and values
  double forward() const { return products + attention; }
};

/// Returns what the forward pass of one sample of `tokens` tokens computes, unit by unit. Attention
/// counts all keys that a layer's window holds, before the query or behind it: kernels differ in
/// whether they leave out what causality hides.
std::vector<UnitFlops> forward_flops(const ModelConfig& model, std::int64_t tokens);

}  // namespace unishard::trainer
