#include "unishard/trainer/gpt.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/dropout.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>

#include <cmath>

namespace unishard::trainer {
namespace {

constexpr double kDeviation = 0.02;  ///< of initial weights, as GPT-2

/// The initial values of layers that add to the residual stream are scaled down by the number of
/// such layers.
double residual_deviation(const GptConfig& config) {
  return kDeviation / std::sqrt(2.0 * static_cast<double>(config.layers));
}

torch::nn::LayerNorm layer_norm(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

/// Returns the output layer, [vocabulary, width]: a weight of its own, or the embedding's under a
/// second name.
class HeadImpl : public torch::nn::Module {
 public:
  explicit HeadImpl(const at::Tensor& weight) { register_parameter("weight", weight); }
};

}  // namespace

Conv1DImpl::Conv1DImpl(std::int64_t in, std::int64_t out, double deviation)
    : weight_(register_parameter("weight",
                                 torch::nn::init::normal_(at::zeros({in, out}), 0, deviation))),
      bias_(register_parameter("bias", at::zeros({out}))) {}

at::Tensor Conv1DImpl::forward(const at::Tensor& x) {
  auto sizes = x.sizes().vec();
  sizes.back() = weight_.size(1);
  return at::addmm(bias_, x.reshape({-1, weight_.size(0)}), weight_).view(sizes);
}

GptAttentionImpl::GptAttentionImpl(const GptConfig& config)
    : config_(config),
      c_attn_(register_module("c_attn", Conv1D(config.width, 3 * config.width, kDeviation))),
      c_proj_(register_module("c_proj",
                              Conv1D(config.width, config.width, residual_deviation(config)))) {}

at::Tensor GptAttentionImpl::forward(const at::Tensor& x) {
  const std::int64_t batch = x.size(0);
  const std::int64_t time = x.size(1);
  const std::int64_t depth = config_.width / config_.heads;
  const at::Tensor qkv =
      c_attn_(x).view({batch, time, 3, config_.heads, depth}).permute({2, 0, 3, 1, 4});
  at::Tensor scores =
      at::matmul(qkv[0], qkv[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(depth));
  const at::Tensor future = at::ones({time, time}, at::kBool).triu(1);
  at::Tensor weights = scores.masked_fill(future, -1e9).softmax(-1);
  if (is_training()) weights = dropout(weights, config_.dropout);
  const at::Tensor mixed =
      at::matmul(weights, qkv[2]).transpose(1, 2).reshape({batch, time, config_.width});
  return is_training() ? dropout(c_proj_(mixed), config_.dropout) : c_proj_(mixed);
}

GptMlpImpl::GptMlpImpl(const GptConfig& config)
    : config_(config),
      c_fc_(register_module("c_fc", Conv1D(config.width, 4 * config.width, kDeviation))),
      c_proj_(register_module(
          "c_proj", Conv1D(4 * config.width, config.width, residual_deviation(config)))) {}

at::Tensor GptMlpImpl::forward(const at::Tensor& x) {
  const at::Tensor y = c_proj_(at::gelu(c_fc_(x), "tanh"));
  return is_training() ? dropout(y, config_.dropout) : y;
}

GptBlockImpl::GptBlockImpl(const GptConfig& config)
    : ln_1_(register_module("ln_1", layer_norm(config.width))),
      ln_2_(nullptr),
      attn_(register_module("attn", GptAttention(config))) {
  ln_2_ = register_module("ln_2", layer_norm(config.width));
  mlp_ = register_module("mlp", GptMlp(config));
}

at::Tensor GptBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor attended = x + attn_(ln_1_(x));
  return attended + mlp_(ln_2_(attended));
}

GptImpl::GptImpl(const GptConfig& config) : config_(config) {
  if (config.heads < 1 || config.width % config.heads != 0) {
    raise(ErrorCode::InvalidArgument, "the model's width must be a multiple of its heads");
  }
  wte_ = register_module("wte", torch::nn::Embedding(config.vocabulary, config.width));
  wpe_ = register_module("wpe", torch::nn::Embedding(config.context, config.width));
  torch::nn::init::normal_(wte_->weight, 0, kDeviation);
  torch::nn::init::normal_(wpe_->weight, 0, kDeviation);
  const auto list = register_module("h", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    blocks_.emplace_back(config);
    list->push_back(blocks_.back());
  }
  ln_f_ = register_module("ln_f", layer_norm(config.width));
  head_ = config.tied_head ? wte_->weight
                           : torch::nn::init::normal_(at::zeros({config.vocabulary, config.width}),
                                                      0, kDeviation);
  register_module("lm_head", std::make_shared<HeadImpl>(head_));
}

at::Tensor GptImpl::forward(const at::Tensor& tokens) {
  const at::Tensor positions = at::arange(tokens.size(1), at::kLong);
  at::Tensor x = wte_(tokens) + wpe_(positions);
  if (is_training()) x = dropout(x, config_.dropout);
  for (auto& block : blocks_) x = block(x);
  return at::matmul(ln_f_(x), head_.t());
}

at::Tensor GptImpl::loss(const at::Tensor& windows) {
  const std::int64_t time = windows.size(1) - 1;
  const at::Tensor logits = forward(windows.narrow(1, 0, time)).reshape({-1, config_.vocabulary});
  return at::cross_entropy_loss(logits.to(at::kFloat), windows.narrow(1, 1, time).reshape({-1}));
}

}  // namespace unishard::trainer
