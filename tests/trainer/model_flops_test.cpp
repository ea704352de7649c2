// The arithmetic of models, compared with the products that LibTorch is asked for.
#include "unishard/trainer/model_flops.hpp"

#include "unishard/trainer/causal_language_model.hpp"

#include "thread_group.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <string_view>

namespace unishard::test {
namespace {

using namespace trainer;

double counted = 0;  // by the thread of the test

double elements(const at::IValue& tensor) { return static_cast<double>(tensor.toTensor().numel()); }
double last_size(const at::IValue& tensor) {
  return static_cast<double>(tensor.toTensor().size(-1));
}

/// Adds the products of one operation of LibTorch.
std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const auto inputs = function.inputs();
  if (name == "aten::mm" || name == "aten::bmm")
    counted += 2 * elements(inputs[0]) * last_size(inputs[1]);
  if (name == "aten::addmm") counted += 2 * elements(inputs[1]) * last_size(inputs[2]);
  if (name.starts_with("aten::_scaled_dot_product_flash_attention")) {
    const auto keys = static_cast<double>(inputs[1].toTensor().size(-2));
    counted += 2 * elements(inputs[0]) * keys + 2 * elements(inputs[0]) * keys;
  }
  return nullptr;
}

double counted_flops(const ModelConfig& config, std::int64_t tokens) {
  const std::lock_guard lock(construction_mutex());
  const auto model = make_language_model(config);
  model->eval();
  const at::NoGradGuard no_grad;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(count).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  counted = 0;
  model->forward(at::zeros({2, tokens}, at::kLong));
  at::removeCallback(handle);
  return counted / 2;  // samples
}

double predicted_flops(const ModelConfig& config, std::int64_t tokens) {
  double sum = 0;
  for (const UnitFlops& unit : forward_flops(config, tokens)) sum += unit.forward();
  return sum;
}

TEST(ModelFlops, AreThoseOfGpt2) {
  GptConfig config{.vocabulary = 96, .context = 40, .layers = 3, .width = 32, .heads = 4};
  EXPECT_DOUBLE_EQ(counted_flops(config, 40), predicted_flops(config, 40));
  config.tied_head = false;
  EXPECT_DOUBLE_EQ(counted_flops(config, 17), predicted_flops(config, 17));
}

TEST(ModelFlops, AreThoseOfTheLlamaFamily) {
  LlamaConfig config;
  config.layers = 2;
  config.width = 48;
  config.inner = 100;
  config.heads = 6;
  config.kv_heads = 2;
  EXPECT_DOUBLE_EQ(counted_flops(config, 24), predicted_flops(config, 24));
  config.head_width = 20;
  config.qk_norm = true;
  EXPECT_DOUBLE_EQ(counted_flops(config, 24), predicted_flops(config, 24));
}

TEST(ModelFlops, AreListedByUnit) {
  const auto units = forward_flops(GptConfig{.layers = 2}, 128);
  ASSERT_EQ(units.size(), 3u);
  EXPECT_EQ(units[1].unit, "h.1");
  EXPECT_EQ(units[2].unit, "lm_head");
  LlamaConfig sliding;
  sliding.window = 16;
  const auto all = forward_flops(LlamaConfig(), 128), some = forward_flops(sliding, 128);
  EXPECT_DOUBLE_EQ(all[0].attention, 8 * some[0].attention);
}

}  // namespace
}  // namespace unishard::test
