#include "models/llama.hpp"

#include "models/attention.hpp"

#include <ATen/ops/silu.h>
#include <torch/nn/modules/container/modulelist.h>

#include <utility>

namespace unishard::trainer::detail {

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config, std::int64_t layer,
                                       std::shared_ptr<RotaryEmbedding> rotary)
    : head_width_(config.width_of_head()),
      window_(config.window_of(layer)),
      dropout_(config.dropout),
      rotary_(std::move(rotary)) {
  const std::int64_t all = config.heads * head_width_;
  const std::int64_t shared = config.kv_heads * head_width_;
  const auto linear = [&](const char* name, std::int64_t in, std::int64_t out, bool has_bias) {
    return register_module(name, Linear(in, out, has_bias, config.deviation));
  };
  q_proj_ = linear("q_proj", config.width, all, config.qkv_bias);
  k_proj_ = linear("k_proj", config.width, shared, config.qkv_bias);
  v_proj_ = linear("v_proj", config.width, shared, config.qkv_bias);
  o_proj_ = linear("o_proj", all, config.width, config.output_bias);
  if (!config.qk_norm) return;
  q_norm_ = register_module("q_norm", RmsNorm(head_width_, config.epsilon));
  k_norm_ = register_module("k_norm", RmsNorm(head_width_, config.epsilon));
}

at::Tensor LlamaAttentionImpl::forward(const at::Tensor& x) {
  const auto split = [&](const at::Tensor& y) {
    return y.view({x.size(0), x.size(1), -1, head_width_});
  };
  at::Tensor q = split(q_proj_(x)), k = split(k_proj_(x)), v = split(v_proj_(x));
  if (q_norm_) {
    q = q_norm_(q);
    k = k_norm_(k);
  }
  const at::Tensor mixed = causal_attention(
      rotary_->rotate(q.transpose(1, 2)), rotary_->rotate(k.transpose(1, 2)), v.transpose(1, 2),
      {.window = window_, .dropout = is_training() ? dropout_ : 0});
  return o_proj_(mixed.transpose(1, 2).reshape({x.size(0), x.size(1), -1}));
}

LlamaMlpImpl::LlamaMlpImpl(const LlamaConfig& config) {
  const auto linear = [&](const char* name, std::int64_t in, std::int64_t out) {
    return register_module(name, Linear(in, out, config.mlp_bias, config.deviation));
  };
  gate_proj_ = linear("gate_proj", config.width, config.inner);
  up_proj_ = linear("up_proj", config.width, config.inner);
  down_proj_ = linear("down_proj", config.inner, config.width);
}

at::Tensor LlamaMlpImpl::forward(const at::Tensor& x) {
  return down_proj_(at::silu(gate_proj_(x)) * up_proj_(x));
}

LlamaLayerImpl::LlamaLayerImpl(const LlamaConfig& config, std::int64_t layer,
                               const std::shared_ptr<RotaryEmbedding>& rotary) {
  const auto norm = [&](const char* name) {
    return register_module(name, RmsNorm(config.width, config.epsilon));
  };
  self_attn_ = register_module("self_attn", LlamaAttention(config, layer, rotary));
  mlp_ = register_module("mlp", LlamaMlp(config));
  input_layernorm_ = norm("input_layernorm");
  post_attention_layernorm_ = norm("post_attention_layernorm");
}

at::Tensor LlamaLayerImpl::forward(const at::Tensor& x) {
  const at::Tensor attended = x + self_attn_(input_layernorm_(x));
  return attended + mlp_(post_attention_layernorm_(attended));
}

LlamaDecoderImpl::LlamaDecoderImpl(const LlamaConfig& config)
    : embed_tokens_(register_module(
          "embed_tokens", new_embedding(config.vocabulary, config.width, config.deviation))) {
  const auto rotary =
      std::make_shared<RotaryEmbedding>(config.rotary, config.width_of_head(), config.positions);
  const auto list = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    layers_.emplace_back(config, layer, rotary);
    list->push_back(layers_.back());
  }
  norm_ = register_module("norm", RmsNorm(config.width, config.epsilon));
}

at::Tensor LlamaDecoderImpl::forward(const at::Tensor& tokens, const RunLayer& run) {
  at::Tensor x = embed_tokens_(tokens);
  for (auto& layer : layers_) x = run(layer, x);
  return norm_(x);
}

LlamaImpl::LlamaImpl(const LlamaConfig& config) {
  require_consistent(config, "the model");
  model_ = register_module("model", LlamaDecoder(config));
  lm_head_ =
      register_module("lm_head", new_head(model_->embedding(), config.tied_head, config.deviation));
}

at::Tensor LlamaImpl::forward(const at::Tensor& tokens) {
  return lm_head_(model_->forward(
      tokens, [this](auto& layer, const at::Tensor& x) { return run_block(layer, x); }));
}

}  // namespace unishard::trainer::detail
