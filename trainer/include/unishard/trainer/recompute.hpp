#pragma once
// Activation checkpointing: a part of the model keeps only its inputs in the forward pass, and the
// backward pass computes the rest again.
//
//   Recompute recompute(*config.activation_checkpointing);
//   for (auto& block : blocks) x = recompute([&](const at::Tensor& in) { return block(in); }, x);
//
// Losses and gradients have the same bits as without it, also with dropout: the second computation
// draws the same random numbers. Source of the technique: Chen et al., "Training Deep Nets with
// Sublinear Memory Cost", 2016; of the keys: DeepSpeed's "activation_checkpointing".
#include "unishard/trainer/config.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace unishard::trainer {

/// What was kept and computed again since construction or reset().
struct RecomputeStats {
  std::int64_t calls = 0;
  std::int64_t kept_bytes = 0;  ///< inputs that wait now
  std::int64_t kept_bytes_peak = 0;
  double forward_seconds = 0;    ///< with `profile`
  double recompute_seconds = 0;  ///< with `profile`: the second computation, without its backward
};

/// Thread safety: one thread at a time, and autograd's threads while that one waits for them.
class Recompute {
 public:
  using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  explicit Recompute(RecomputeOptions options = {});
  ~Recompute();
  Recompute(const Recompute&) = delete;
  Recompute& operator=(const Recompute&) = delete;

  /// Returns function(inputs). Without gradients, or outside of training, nothing is kept.
  /// Pre: `function` depends only on its inputs, parameters, and what it draws from LibTorch's
  /// default generators or dropout(). It does not change its inputs.
  /// Lifetime: what `function` refers to must outlive the backward pass.
  /// Throws: what `function` throws; InvalidArgument when contiguous memory is too small.
  std::vector<at::Tensor> operator()(Function function, const std::vector<at::Tensor>& inputs);
  at::Tensor operator()(std::function<at::Tensor(const at::Tensor&)> function,
                        const at::Tensor& input);

  RecomputeStats stats() const;

 private:
  struct Keeper;
  std::shared_ptr<Keeper> keeper_;  ///< graphs may outlive this object
};

}  // namespace unishard::trainer
