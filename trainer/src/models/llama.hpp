#pragma once
// The Llama family with the names, shapes and arithmetic of Hugging Face's LlamaForCausalLM,
// MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM. Each layer is a unit.
#include "unishard/trainer/causal_language_model.hpp"
#include "unishard/trainer/llama_config.hpp"
#include "unishard/trainer/sharded.hpp"

#include "models/layers.hpp"
#include "models/rotary.hpp"

#include <memory>
#include <vector>

namespace unishard::trainer::detail {

class LlamaAttentionImpl : public torch::nn::Module {
 public:
  LlamaAttentionImpl(const LlamaConfig& config, std::int64_t layer,
                     std::shared_ptr<RotaryEmbedding> rotary);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::int64_t head_width_, window_;
  double dropout_;
  std::shared_ptr<RotaryEmbedding> rotary_;
  Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
  RmsNorm q_norm_{nullptr}, k_norm_{nullptr};  ///< null: the model has none
};
TORCH_MODULE(LlamaAttention);

/// SwiGLU.
class LlamaMlpImpl : public torch::nn::Module {
 public:
  explicit LlamaMlpImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  Linear gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
};
TORCH_MODULE(LlamaMlp);

class LlamaLayerImpl : public torch::nn::Module {
 public:
  LlamaLayerImpl(const LlamaConfig& config, std::int64_t layer,
                 const std::shared_ptr<RotaryEmbedding>& rotary);
  at::Tensor forward(const at::Tensor& x);

 private:
  LlamaAttention self_attn_{nullptr};
  LlamaMlp mlp_{nullptr};
  RmsNorm input_layernorm_{nullptr}, post_attention_layernorm_{nullptr};
};

/// The model without its head.
class LlamaDecoderImpl : public torch::nn::Module {
 public:
  using RunLayer = std::function<at::Tensor(Sharded<LlamaLayerImpl>&, const at::Tensor&)>;

  explicit LlamaDecoderImpl(const LlamaConfig& config);
  /// Calls run(layer, x) for each layer.
  at::Tensor forward(const at::Tensor& tokens, const RunLayer& run);
  const torch::nn::Embedding& embedding() const { return embed_tokens_; }

 private:
  torch::nn::Embedding embed_tokens_{nullptr};
  std::vector<Sharded<LlamaLayerImpl>> layers_;
  RmsNorm norm_{nullptr};
};
TORCH_MODULE(LlamaDecoder);

class LlamaImpl : public CausalLanguageModel {
 public:
  explicit LlamaImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& tokens) override;

 private:
  LlamaDecoder model_{nullptr};
  Head lm_head_{nullptr};
};

}  // namespace unishard::trainer::detail
