#include "unishard/trainer/gpt.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/dropout.hpp"

#include "models/attention.hpp"
#include "models/layers.hpp"

#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

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

}  // namespace

Conv1DImpl::Conv1DImpl(std::int64_t in, std::int64_t out, double deviation)
    : weight_(register_parameter("weight", detail::normal_weight({in, out}, deviation))),
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
  // Their gradients are joined by one copy; those of a stacked tensor's parts would be added up.
  std::vector<at::Tensor> qkv = c_attn_(x).split(config_.width, -1);
  for (at::Tensor& each : qkv)
    each = each.view({batch, time, config_.heads, depth}).transpose(1, 2);
  const at::Tensor attended = detail::causal_attention(
      qkv[0], qkv[1], qkv[2], {.dropout = is_training() ? config_.dropout : 0});
  const at::Tensor mixed = attended.transpose(1, 2).reshape({batch, time, config_.width});
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
  wte_ = register_module("wte", detail::new_embedding(config.vocabulary, config.width, kDeviation));
  wpe_ = register_module("wpe", detail::new_embedding(config.context, config.width, kDeviation));
  const auto list = register_module("h", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    blocks_.emplace_back(config);
    list->push_back(blocks_.back());
  }
  ln_f_ = register_module("ln_f", layer_norm(config.width));
  const detail::Head head = detail::new_head(wte_, config.tied_head, kDeviation);
  register_module("lm_head", head);
  head_ = head->weight();
}

at::Tensor GptImpl::forward(const at::Tensor& tokens) {
  const at::Tensor positions = at::arange(tokens.size(1), tokens.options());
  at::Tensor x = wte_(tokens) + wpe_(positions);
  if (is_training()) x = dropout(x, config_.dropout);
  for (auto& block : blocks_) x = run_block(block, x);
  return at::matmul(ln_f_(x), head_.t());
}

}  // namespace unishard::trainer
