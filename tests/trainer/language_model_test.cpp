// What the language models are made of: attention, the rotary embedding, and what a token sees.
// Logits beside those of transformers: tests/interop/peers/model_logits.py.
#include "unishard/format/error.hpp"
#include "unishard/trainer/causal_language_model.hpp"

#include "models/attention.hpp"
#include "models/cross_entropy.hpp"
#include "models/rotary.hpp"
#include "state/generator_scope.hpp"
#include "thread_group.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <cmath>
#include <set>

namespace unishard::test {
namespace {

using namespace trainer;
using namespace trainer::detail;

/// The definition: each query alone, over the keys that it sees.
at::Tensor attention_by_definition(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   std::int64_t window) {
  at::Tensor result = at::zeros_like(q);
  const std::int64_t queries_per_key = q.size(1) / k.size(1);
  for (std::int64_t head = 0; head < q.size(1); ++head) {
    for (std::int64_t t = 0; t < q.size(2); ++t) {
      const std::int64_t first = window == 0 ? 0 : std::max<std::int64_t>(t - window + 1, 0);
      const auto seen = [&](const at::Tensor& x) {
        return x.select(1, head / queries_per_key).slice(1, first, t + 1);
      };
      const at::Tensor query = q.select(1, head).select(1, t).unsqueeze(1);
      const at::Tensor weights =
          (at::matmul(query, seen(k).transpose(1, 2)) / std::sqrt(q.size(3))).softmax(-1);
      result.select(1, head).select(1, t).copy_(at::matmul(weights, seen(v)).squeeze(1));
    }
  }
  return result;
}

// LibTorch 1.13 never frees a clone, so as few are made as are used at once.
TEST(OwnGenerator, IsUsedAgainAndDrawsWhatItsSeedSays) {
  std::set<const void*> seen;
  std::vector<at::Tensor> drawn;
  for (const std::uint64_t seed : {7u, 8u, 7u}) {
    OwnGenerator outer(at::kCPU, seed), inner(at::kCPU, seed + 1);
    at::normal(0, 1, {3}, outer.get());  // of an odd number of values, the generator keeps one
    seen.insert({outer.get().unsafeGetGeneratorImpl(), inner.get().unsafeGetGeneratorImpl()});
    drawn.push_back(at::rand({4}, outer.get()));
  }
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_TRUE(at::equal(drawn[0], drawn[2]));
  EXPECT_FALSE(at::equal(drawn[0], drawn[1]));
}

TEST(CrossEntropy, InPartsHasTheBitsOfTheWhole) {
  constexpr std::int64_t kRows = 37, kVocabulary = 203;
  const at::Tensor targets = at::arange(kRows, at::kLong).mul(11).remainder(kVocabulary);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor values = (at::arange(kRows * kVocabulary, at::kFloat).sin() * 5).to(type);
    const auto run = [&](const auto& loss) {
      const at::Tensor logits = values.clone().view({kRows, kVocabulary}).requires_grad_(true);
      const at::Tensor result = loss(logits);
      (result * 0.37).backward();
      return std::pair{result.item<float>(), logits.grad()};
    };
    const auto [expected, gradient] = run([&](const at::Tensor& logits) {
      return at::cross_entropy_loss(logits.to(at::kFloat), targets);
    });
    for (const std::int64_t rows : {0, 1, 5, 36, 37, 100}) {
      const auto [found, found_gradient] = run([&](const at::Tensor& logits) {
        return cross_entropy_in_parts(logits, targets, {.rows = rows});
      });
      EXPECT_EQ(found, expected) << rows;
      EXPECT_TRUE(at::equal(found_gradient, gradient)) << rows;
    }
  }
}

TEST(CausalAttention, IsTheDefinitionForEveryWindow) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  const auto random = [&](std::int64_t heads) {
    return at::randn({2, heads, 23, 8}, generator, at::kFloat);
  };
  const at::Tensor q = random(4), k = random(2), v = random(2);
  for (const std::int64_t window : {0, 1, 3, 7, 22, 23, 100}) {
    const at::Tensor expected = attention_by_definition(q, k, v, window);
    const at::Tensor found = causal_attention(q, k, v, {.window = window});
    EXPECT_LT((expected - found).abs().max().item<float>(), 2e-6) << window;
  }
}

TEST(CausalAttention, DropoutLeavesOutWeightsAndKeepsTheMean) {
  const at::Tensor q = at::zeros({1, 1, 400, 8}), v = at::ones({1, 1, 400, 8});
  torch::manual_seed(3);
  const at::Tensor found = causal_attention(q, q, v, {.dropout = 0.5});
  const at::Tensor first = found[0][0][0];  // of one weight, kept or not
  EXPECT_TRUE(at::equal(first, at::full_like(first, first[0].item<float>())));
  EXPECT_GT(found.std().item<float>(), 0.05);
  EXPECT_NEAR(found.mean().item<float>(), 1, 0.1);
}

#if TORCH_VERSION_MAJOR >= 2
TEST(CausalAttention, FusedHoldsNoMatrixOfAllWeights) {
  const auto peak = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;  // KiB
  };
  constexpr std::int64_t kTime = 20000;
  const at::Tensor q = at::ones({1, 1, kTime, 8}).requires_grad_();
  const auto before = peak();
  causal_attention(q, q, q, {}).sum().backward();
  EXPECT_LT(peak() - before, kTime * kTime * 4 / 1024 / 8) << "the matrix has 1.6 GB";
}
#endif

/// The numbers are those of LlamaRotaryEmbedding of transformers 5.23.
void expect_frequencies(const RotaryConfig& config, std::int64_t time,
                        const std::vector<double>& expected, double factor = 1) {
  const at::Tensor found = rotary_frequencies(config, /*head_width=*/8, /*positions=*/1200, time);
  ASSERT_EQ(found.numel(), 4);
  for (std::int64_t i = 0; i < 4; ++i) {
    const double value = expected[static_cast<std::size_t>(i)];
    EXPECT_NEAR(found[i].item<double>(), value, value * 1e-6) << i;
  }
  EXPECT_NEAR(rotary_attention_factor(config), factor, 1e-8);
}

TEST(Rotary, FrequenciesAreThoseOfTransformers) {
  using enum RotaryScaling;
  expect_frequencies({}, 2400, {1, 0.1, 0.01, 0.001});
  expect_frequencies({.scaling = RotaryScaling::Linear, .factor = 3}, 2400,
                     {0.33333334, 0.033333335, 0.0033333332, 0.00033333336});
  const RotaryConfig dynamic{.scaling = Dynamic, .factor = 2};
  expect_frequencies(dynamic, 1200, {1, 0.1, 0.01, 0.001});
  expect_frequencies(dynamic, 2400, {1, 0.069336124, 0.0048074983, 0.00033333333});
  RotaryConfig yarn{.scaling = Yarn, .factor = 3, .original_positions = 400};
  expect_frequencies(yarn, 400, {1, 0.06666667, 0.0033333334, 0.00033333333}, 1.10986123);
  yarn.mscale = 0.8;
  yarn.mscale_all_dim = 0.5;
  yarn.truncate = false;
  expect_frequencies(yarn, 400, {1, 0.06893909, 0.0033333334, 0.00033333333}, 1.03124221);
  const RotaryConfig long_rope{.scaling = LongRope,
                               .factor = 3,
                               .original_positions = 400,
                               .short_factor = {1, 1.1, 1.2, 1.3},
                               .long_factor = {2, 3, 4, 5}};
  expect_frequencies(long_rope, 400, {1, 0.090909094, 0.0083333328, 0.00076923077}, 1.08782485);
  expect_frequencies(long_rope, 401, {0.5, 0.033333335, 0.0024999999, 0.0002}, 1.08782485);
  expect_frequencies({.scaling = Llama3, .theta = 1000, .factor = 4, .original_positions = 400},
                     400, {1, 0.17782794, 0.015915496, 0.0014058533});
}

TEST(Rotary, ProductsDependOnDistancesAlone) {
  RotaryEmbedding rotary({}, 8, 64);
  const at::Tensor row = at::arange(8, at::kFloat).sin();
  const at::Tensor turned = rotary.rotate(row.expand({1, 1, 10, 8}))[0][0];
  const at::Tensor products = at::matmul(turned, turned.t());
  for (std::int64_t i = 1; i < 10; ++i)
    EXPECT_NEAR(products[i][i - 1].item<float>(), products[1][0].item<float>(), 1e-5);
  EXPECT_GT(std::abs(products[0][9].item<float>() - products[0][0].item<float>()), 0.1);
  EXPECT_EQ(rotary.rotate(row.to(at::kBFloat16).expand({1, 1, 3, 8})).scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(rotary.rotate(row.expand({1, 1, 10, 8}))[0][0], turned));
}

LlamaConfig small_llama() {
  LlamaConfig config{.vocabulary = 50, .positions = 32, .layers = 1, .width = 16, .inner = 24};
  config.family = LlamaFamily::Qwen3;
  config.qk_norm = true;
  return config;
}

std::shared_ptr<CausalLanguageModel> built(const ModelConfig& config) {
  const std::lock_guard lock(construction_mutex());
  torch::manual_seed(5);
  auto model = make_language_model(config);
  model->eval();
  return model;
}

/// Returns the first position whose logits change with the token at `position`, and the last.
std::pair<std::int64_t, std::int64_t> seen_by(CausalLanguageModel& model, std::int64_t position) {
  const at::NoGradGuard no_grad;
  at::Tensor tokens = at::arange(20, at::kLong).unsqueeze(0);
  const at::Tensor before = model.forward(tokens);
  tokens[0][position] = 49;
  const at::Tensor change = (model.forward(tokens) - before).abs().amax(-1)[0];
  const at::Tensor changed = change.gt(0).nonzero();
  return {changed[0].item<std::int64_t>(), changed[-1].item<std::int64_t>()};
}

TEST(LanguageModel, ATokenIsSeenByThoseBehindItWithinTheWindow) {
  using Range = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(
      seen_by(*built(GptConfig{.vocabulary = 50, .context = 20, .layers = 1, .width = 16}), 4),
      (Range{4, 19}));
  LlamaConfig llama = small_llama();
  EXPECT_EQ(seen_by(*built(llama), 4), (Range{4, 19}));
  llama.window = 6;
  EXPECT_EQ(seen_by(*built(llama), 4), (Range{4, 9}));
}

/// On a device, LibTorch's own kernels may take the norms and the attention with shared key heads.
TEST(CudaLanguageModel, HasTheLossAndTheGradientsOfTheHost) {
  if (!at::hasCUDA()) GTEST_SKIP() << "LibTorch sees no CUDA device";
  LlamaConfig config{.vocabulary = 50, .positions = 32, .layers = 2, .width = 64, .inner = 96};
  config.family = LlamaFamily::Qwen3;
  config.heads = 4;
  config.kv_heads = 2;
  config.qk_norm = true;
  const at::Tensor windows = at::arange(3 * 33).mul(7).remainder(50).view({3, 33});
  const auto host = built(config);
  const at::Tensor expected = host->loss(windows);
  expected.backward();
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-3}, {at::kBFloat16, 0.05}}) {
    const auto model = built(config);
    model->to(at::kCUDA, type);
    const at::Tensor found = model->loss(windows.to(at::kCUDA));
    found.backward();
    EXPECT_NEAR(found.item<float>(), expected.item<float>(), tolerance);
    const auto gradients = model->named_parameters();
    for (const auto& each : host->named_parameters()) {
      const at::Tensor gradient = each.value().grad();
      const at::Tensor there = gradients[each.key()].grad().to(at::kCPU, at::kFloat);
      EXPECT_LE((there - gradient).norm().item<double>(),
                tolerance * gradient.norm().item<double>())
          << each.key();
    }
  }
}

TEST(LanguageModel, ParametersHaveTheNamesOfTransformers) {
  std::vector<std::string> names;
  for (const auto& each : built(small_llama())->named_parameters()) names.push_back(each.key());
  const std::string layer = "model.layers.0.", attention = layer + "self_attn.";
  EXPECT_EQ(
      names,
      (std::vector<std::string>{
          "model.embed_tokens.weight", attention + "q_proj.weight", attention + "k_proj.weight",
          attention + "v_proj.weight", attention + "o_proj.weight", attention + "q_norm.weight",
          attention + "k_norm.weight", layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight",
          layer + "mlp.down_proj.weight", layer + "input_layernorm.weight",
          layer + "post_attention_layernorm.weight", "model.norm.weight", "lm_head.weight"}));
}

TEST(LanguageModel, SizesThatContradictEachOtherAreRefused) {
  LlamaConfig llama = small_llama();
  llama.kv_heads = 3;
  EXPECT_THROW(built(llama), Error);
  EXPECT_THROW(built(GptConfig{.width = 10, .heads = 3}), Error);
}

}  // namespace
}  // namespace unishard::test
