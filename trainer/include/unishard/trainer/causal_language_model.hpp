#pragma once
// A model that predicts the next token, as train_gpt trains it.
#include "unishard/trainer/model_config.hpp"

#include <torch/nn/module.h>

#include <memory>

namespace unishard::trainer {

class CausalLanguageModel : public torch::nn::Module {
 public:
  /// Maps tokens [batch, time] to logits [batch, time, vocabulary].
  virtual at::Tensor forward(const at::Tensor& tokens) = 0;
  /// Returns the mean cross entropy, in fp32, of predicting windows[:, 1:] from windows[:, :-1].
  at::Tensor loss(const at::Tensor& windows);
};

/// Builds a model, whose parameters have the names and shapes of transformers. Each block is a
/// unit.
/// Throws: InvalidArgument when its sizes contradict each other.
std::shared_ptr<CausalLanguageModel> make_language_model(const ModelConfig& config);

}  // namespace unishard::trainer
