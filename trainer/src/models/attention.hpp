#pragma once
// Attention of tokens to the tokens before them: fused where LibTorch has a kernel for it, else
// through the matrix of all weights. Every model calls it, so the choice is made here alone.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace unishard::trainer::detail {

struct AttentionOptions {
  std::int64_t window = 0;  ///< tokens that a token attends to, itself included; 0: all before it
  double dropout = 0;       ///< of the attention weights
};

/// Returns true where no matrix of all weights is built, if there is no window.
bool has_fused_attention(bool on_cuda, double dropout);

/// Maps queries [batch, heads, time, head width] and keys and values [batch, kv heads, time, head
/// width] to values for each query. Query head i uses key head i / (heads / kv heads).
/// Complexity: where a kernel is fused, memory grows with time and not with its square; with a
/// window, computation grows with time * window.
at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const AttentionOptions& options);

}  // namespace unishard::trainer::detail
