#pragma once
// A model that predicts the next token, as train_gpt trains it.
#include "unishard/trainer/model_config.hpp"
#include "unishard/trainer/recompute.hpp"

#include <torch/nn/module.h>

#include <memory>

namespace unishard::trainer {

class CausalLanguageModel : public torch::nn::Module {
 public:
  CausalLanguageModel();
  /// Maps tokens [batch, time] to logits [batch, time, vocabulary].
  virtual at::Tensor forward(const at::Tensor& tokens) = 0;
  /// Makes training recompute the activations of each block in the backward pass.
  void recompute_blocks(RecomputeOptions options) {
    recompute_ = std::make_unique<Recompute>(options);
  }
  /// Returns null when nothing is recomputed.
  const Recompute* recompute() const { return recompute_.get(); }
  /// Returns the mean cross entropy, in fp32, of predicting windows[:, 1:] from windows[:, :-1].
  at::Tensor loss(const at::Tensor& windows);

 protected:
  /// Returns block(x), recomputed or not.
  template <class Block>
  at::Tensor run_block(Block& block, const at::Tensor& x) {
    if (!recompute_) return block(x);
    return (*recompute_)([&block](const at::Tensor& input) { return block(input); }, x);
  }

 private:
  std::unique_ptr<Recompute> recompute_;
  at::Tensor expected_gradient_;  ///< of the loss, as the last backward pass had it
};

/// Builds a model, whose parameters have the names and shapes of transformers. Each block is a
/// unit.
/// Throws: InvalidArgument when its sizes contradict each other.
std::shared_ptr<CausalLanguageModel> make_language_model(const ModelConfig& config);

}  // namespace unishard::trainer
