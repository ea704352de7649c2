#include "unishard/trainer/model_flops.hpp"

#include <algorithm>

namespace unishard::trainer {
namespace {

/// An addition and a multiplication.
constexpr double kPerProduct = 2;

UnitFlops unit_of(std::string name, std::int64_t matrix_elements, std::int64_t tokens) {
  return {
      .unit = std::move(name),
      .parameters = matrix_elements,
      .products = kPerProduct * static_cast<double>(matrix_elements) * static_cast<double>(tokens)};
}

/// Scores, and the values that they weigh, for `keys` keys of each query.
double attention_flops(std::int64_t tokens, std::int64_t keys, std::int64_t width) {
  return 2 * kPerProduct * static_cast<double>(tokens) * static_cast<double>(keys) *
         static_cast<double>(width);
}

std::vector<UnitFlops> flops_of(const GptConfig& model, std::int64_t tokens) {
  std::vector<UnitFlops> units;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    // 3 for queries, keys and values, 1 for the output, 8 for the MLP.
    units.push_back(unit_of("h." + std::to_string(layer), 12 * model.width * model.width, tokens));
    units.back().attention = attention_flops(tokens, tokens, model.width);
  }
  units.push_back(unit_of("lm_head", model.width * model.vocabulary, tokens));
  return units;
}

std::vector<UnitFlops> flops_of(const LlamaConfig& model, std::int64_t tokens) {
  const std::int64_t heads = model.heads * model.width_of_head();
  const std::int64_t kv_heads = model.kv_heads * model.width_of_head();
  const std::int64_t matrices = model.width * (2 * heads + 2 * kv_heads + 3 * model.inner);
  std::vector<UnitFlops> units;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    units.push_back(unit_of("model.layers." + std::to_string(layer), matrices, tokens));
    const std::int64_t window = model.window_of(layer);
    units.back().attention =
        attention_flops(tokens, window == 0 ? tokens : std::min(window, tokens), heads);
  }
  units.push_back(unit_of("lm_head", model.width * model.vocabulary, tokens));
  return units;
}

}  // namespace

std::vector<UnitFlops> forward_flops(const ModelConfig& model, std::int64_t tokens) {
  return std::visit([&](const auto& config) { return flops_of(config, tokens); }, model);
}

}  // namespace unishard::trainer
