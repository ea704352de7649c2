#include "unishard/trainer/causal_language_model.hpp"

#include "unishard/trainer/gpt.hpp"

#include "models/cross_entropy.hpp"
#include "models/llama.hpp"

#include <ATen/ops/ones.h>

namespace unishard::trainer {

CausalLanguageModel::CausalLanguageModel() : expected_gradient_(at::ones({}, at::kFloat)) {}

at::Tensor CausalLanguageModel::loss(const at::Tensor& windows) {
  const std::int64_t time = windows.size(1) - 1;
  const at::Tensor logits = forward(windows.narrow(1, 0, time));
  return detail::cross_entropy_in_parts(logits.reshape({-1, logits.size(-1)}),
                                        windows.narrow(1, 1, time).reshape({-1}),
                                        {.expected_gradient = expected_gradient_});
}

std::shared_ptr<CausalLanguageModel> make_language_model(const ModelConfig& config) {
  if (const auto* const gpt = std::get_if<GptConfig>(&config))
    return std::make_shared<GptImpl>(*gpt);
  return std::make_shared<detail::LlamaImpl>(std::get<LlamaConfig>(config));
}

}  // namespace unishard::trainer
