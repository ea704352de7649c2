#include "models/layers.hpp"

#include "models/rms_norm.hpp"

#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>

namespace unishard::trainer::detail {

at::Tensor normal_weight(at::IntArrayRef sizes, double deviation) {
  return torch::nn::init::normal_(at::zeros(sizes), 0, deviation);
}

torch::nn::Embedding new_embedding(std::int64_t count, std::int64_t width, double deviation) {
  torch::nn::Embedding embedding(count, width);
  torch::nn::init::normal_(embedding->weight, 0, deviation);
  return embedding;
}

LinearImpl::LinearImpl(std::int64_t in, std::int64_t out, bool has_bias, double deviation)
    : weight_(register_parameter("weight", normal_weight({out, in}, deviation))) {
  if (has_bias) bias_ = register_parameter("bias", at::zeros({out}));
}

at::Tensor LinearImpl::forward(const at::Tensor& x) { return at::linear(x, weight_, bias_); }

RmsNormImpl::RmsNormImpl(std::int64_t width, double epsilon)
    : weight_(register_parameter("weight", at::ones({width}))), epsilon_(epsilon) {}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) { return rms_norm(x, weight_, epsilon_); }

HeadImpl::HeadImpl(const at::Tensor& weight) : weight_(register_parameter("weight", weight)) {}

at::Tensor HeadImpl::forward(const at::Tensor& x) { return at::matmul(x, weight_.t()); }

Head new_head(const torch::nn::Embedding& embedding, bool is_tied, double deviation) {
  const at::Tensor& weight = embedding->weight;
  return Head(is_tied ? weight : normal_weight(weight.sizes(), deviation));
}

}  // namespace unishard::trainer::detail
