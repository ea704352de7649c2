#pragma once
// Layers that several models share.
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace unishard::trainer::detail {

/// Returns a weight whose elements have a normal distribution around 0.
at::Tensor normal_weight(at::IntArrayRef sizes, double deviation);

torch::nn::Embedding new_embedding(std::int64_t count, std::int64_t width, double deviation);

/// x W^T + b, as torch.nn.Linear with other initial values: the bias is 0.
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(std::int64_t in, std::int64_t out, bool has_bias, double deviation);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_, bias_;
};
TORCH_MODULE(Linear);

/// rms_norm() with a weight of its own.
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(std::int64_t width, double epsilon);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
  double epsilon_;
};
TORCH_MODULE(RmsNorm);

/// The output layer: a weight [vocabulary, width] of its own, or the embedding's under a second
/// name.
class HeadImpl : public torch::nn::Module {
 public:
  explicit HeadImpl(const at::Tensor& weight);
  at::Tensor forward(const at::Tensor& x);
  const at::Tensor& weight() const { return weight_; }

 private:
  at::Tensor weight_;
};
TORCH_MODULE(Head);

/// Returns the head of a model with `embedding`; `is_tied`: it shares the embedding's weight.
Head new_head(const torch::nn::Embedding& embedding, bool is_tied, double deviation);

}  // namespace unishard::trainer::detail
