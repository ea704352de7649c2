#pragma once
// GPT-2 with the names, shapes and arithmetic of Hugging Face's GPT2Model, so that its checkpoints
// convert without renaming: Conv1D weights are [in, out], and the head is tied to the embedding
// unless the configuration says otherwise. Each block is a unit.
#include "unishard/trainer/causal_language_model.hpp"
#include "unishard/trainer/gpt_config.hpp"
#include "unishard/trainer/sharded.hpp"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include <vector>

namespace unishard::trainer {

/// GPT-2's linear layer; its weight is [in, out].
class Conv1DImpl : public torch::nn::Module {
 public:
  Conv1DImpl(std::int64_t in, std::int64_t out, double deviation);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_, bias_;
};
TORCH_MODULE(Conv1D);

class GptAttentionImpl : public torch::nn::Module {
 public:
  explicit GptAttentionImpl(const GptConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  GptConfig config_;
  Conv1D c_attn_{nullptr}, c_proj_{nullptr};
};
TORCH_MODULE(GptAttention);

class GptMlpImpl : public torch::nn::Module {
 public:
  explicit GptMlpImpl(const GptConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  GptConfig config_;
  Conv1D c_fc_{nullptr}, c_proj_{nullptr};
};
TORCH_MODULE(GptMlp);

class GptBlockImpl : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
  GptAttention attn_{nullptr};
  GptMlp mlp_{nullptr};
};

class GptImpl : public CausalLanguageModel {
 public:
  explicit GptImpl(const GptConfig& config);
  at::Tensor forward(const at::Tensor& tokens) override;
  const GptConfig& config() const { return config_; }

 private:
  GptConfig config_;
  torch::nn::Embedding wte_{nullptr}, wpe_{nullptr};
  std::vector<Sharded<GptBlockImpl>> blocks_;
  torch::nn::LayerNorm ln_f_{nullptr};
  at::Tensor head_;  ///< [vocabulary, width]
};
TORCH_MODULE(Gpt);

}  // namespace unishard::trainer
