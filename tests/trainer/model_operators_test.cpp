// What the parts of the language models compute, write and keep for the backward pass. On a device
// their time is that of the bytes.
#include "unishard/format/error.hpp"
#include "unishard/trainer/causal_language_model.hpp"
#include "unishard/trainer/dropout.hpp"

#include "models/cross_entropy.hpp"
#include "models/rms_norm.hpp"
#include "models/rotary.hpp"
#include "recorded_operators.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

namespace unishard::test {
namespace {

using namespace trainer;
using namespace trainer::detail;

constexpr std::int64_t kBatch = 4, kHeads = 3, kTime = 50, kWidth = 64;
constexpr double kEpsilon = 1e-5;

using Part = std::function<at::Tensor(const at::Tensor& x)>;

at::Tensor values(at::ScalarType type, double phase = 0) {
  const at::Tensor flat = at::arange(kBatch * kTime * kHeads * kWidth, at::kDouble) * 0.37 + phase;
  return (flat.sin() * 3).view({kBatch, kTime, kHeads, kWidth}).to(type);
}

/// What a part gives for values(type) and for a gradient of its result.
struct Passes {
  at::Tensor result, gradient;
  double written = 0;  ///< bytes for each element
  double kept = 0;     ///< for the backward pass, the input left out
};

Passes passes_of(const Part& part, at::ScalarType type) {
  const at::Tensor x = values(type).requires_grad_();
  const at::Tensor of_result = values(type, 0.7).view(part(x).sizes());
  Passes passes;
  const auto each = static_cast<double>(x.numel());
  const auto operators = operators_of([&] {
    const AllocatedBytes allocated;
    passes.result = part(x);
    passes.kept =
        static_cast<double>(allocated.now() - static_cast<std::int64_t>(passes.result.nbytes())) /
        each;
    passes.gradient = torch::autograd::grad({passes.result}, {x}, {of_result})[0];
  });
  passes.written = static_cast<double>(written_by(operators)) / each;
  return passes;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// The formula in operators of autograd, in fp32 or wider.
at::Tensor norm_by_formula(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(wide.pow(2).mean(-1, true) + kEpsilon);
  return weight * (wide * scale).to(x.scalar_type());
}

at::Tensor norm_weight(at::ScalarType type) {
  return (at::arange(kWidth, at::kDouble).cos() + 1.5).to(type).requires_grad_();
}

Passes norm_passes(at::ScalarType type, bool by_formula) {
  const at::Tensor weight = norm_weight(type);
  return passes_of(
      [&](const at::Tensor& x) {
        return by_formula ? norm_by_formula(x, weight) : rms_norm(x, weight, kEpsilon);
      },
      type);
}

TEST(RmsNorm, HasTheBitsOfTheFormulaAndItsGradients) {
  const Passes exact = norm_passes(at::kDouble, /*by_formula=*/true);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Passes expected = norm_passes(type, true), found = norm_passes(type, false);
    EXPECT_TRUE(at::equal(found.result, expected.result));
    EXPECT_EQ(found.gradient.scalar_type(), type);
    EXPECT_LE(distance(found.gradient, exact.gradient),
              type == at::kFloat ? 2e-6 : distance(expected.gradient, exact.gradient) * 1.5);
  }
}

TEST(RmsNorm, HasTheGradientOfItsWeight) {
  const auto gradient_of = [](at::ScalarType type, const auto& norm) {
    const at::Tensor weight = norm_weight(type);
    return torch::autograd::grad({norm(values(type), weight)}, {weight}, {values(type, 0.7)})[0];
  };
  const auto ours = [](const at::Tensor& x, const at::Tensor& weight) {
    return rms_norm(x, weight, kEpsilon);
  };
  const at::Tensor exact = gradient_of(at::kDouble, norm_by_formula);
  const double scale = exact.abs().max().item<double>();
  EXPECT_LE(distance(gradient_of(at::kFloat, ours), exact), scale * 1e-6);
  EXPECT_LE(distance(gradient_of(at::kBFloat16, ours), exact), scale * 4e-3);
}

TEST(RmsNorm, WritesFewBytesAndKeepsNoCopyOfItsInput) {
  for (const auto& [type, written] : {std::pair{at::kFloat, 20.5}, {at::kBFloat16, 34.6}}) {
    const Passes passes = norm_passes(type, false), by_formula = norm_passes(type, true);
    EXPECT_LE(passes.written, written);
    EXPECT_GE(by_formula.written, passes.written * 1.3);
    EXPECT_LE(passes.kept, 4.0 / kWidth + 0.01);
    EXPECT_GE(by_formula.kept, 4);
  }
}

/// Of x as the layers have it, [batch, time, heads, width]; a quarter turn is a copy.
at::Tensor rotation_by_formula(const at::Tensor& by_time) {
  const at::Tensor x = by_time.transpose(1, 2);
  const at::Tensor half = at::arange(kTime, at::kLong).to(at::kFloat).unsqueeze(1) *
                          rotary_frequencies({}, kWidth, kTime, kTime).unsqueeze(0);
  const at::Tensor angles = at::cat({half, half}, -1);
  const auto part = [&](std::int64_t begin) { return x.narrow(-1, begin, kWidth / 2); };
  const at::Tensor turned = at::cat({-part(kWidth / 2), part(0)}, -1);
  return x * angles.cos().to(x.options()) + turned * angles.sin().to(x.options());
}

Passes rotation_passes(at::ScalarType type) {
  RotaryEmbedding rotary({}, kWidth, kTime);
  return passes_of([&](const at::Tensor& x) { return rotary.rotate(x.transpose(1, 2)); }, type);
}

TEST(Rotary, HasTheBitsOfTheFormulaAndItsGradient) {
  const Passes expected = passes_of(rotation_by_formula, at::kFloat);
  const Passes found = rotation_passes(at::kFloat), short_found = rotation_passes(at::kBFloat16);
  EXPECT_TRUE(at::equal(found.result, expected.result));
  EXPECT_TRUE(at::equal(found.gradient, expected.gradient));
  EXPECT_EQ(found.result.strides(), values(at::kFloat).transpose(1, 2).strides());
  EXPECT_LE(distance(short_found.result, expected.result), 0.05);
  EXPECT_LE(distance(short_found.gradient, expected.gradient), 0.05);
}

TEST(Rotary, WritesFewBytesAndKeepsNothing) {
  const Passes passes = rotation_passes(at::kBFloat16);
  EXPECT_LE(passes.written, 2 * 4);
  EXPECT_GE(passes_of(rotation_by_formula, at::kBFloat16).written, 2 * passes.written);
  EXPECT_LE(passes.kept, 0.01);
}

Passes dropout_passes(at::ScalarType type, double p) {
  return passes_of(
      [&](const at::Tensor& x) {
        torch::manual_seed(7);
        return dropout(x, p);
      },
      type);
}

TEST(Dropout, HasTheMasksOfItsGeneratorAndTheirGradient) {
  const Passes found = dropout_passes(at::kFloat, 0.3);
  torch::manual_seed(7);
  const at::Tensor mask = at::empty(values(at::kFloat).sizes()).bernoulli_(0.7);
  EXPECT_TRUE(at::equal(found.result, values(at::kFloat) * mask * (1 / 0.7)));
  EXPECT_TRUE(at::equal(found.gradient, values(at::kFloat, 0.7) * mask * (1 / 0.7)));
  const at::Tensor x = values(at::kFloat);
  EXPECT_TRUE(dropout(x, 0).is_same(x));
  EXPECT_THROW(dropout(x, 1), Error);
}

TEST(Dropout, KeepsAByteForEachElementAndNothingWider) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const double size = static_cast<double>(at::elementSize(type));
    const Passes passes = dropout_passes(type, 0.3);
    EXPECT_LE(passes.written, 1 + 4 * size);
    EXPECT_LE(passes.kept, 1.01);
  }
}

TEST(Gpt, QueriesKeysAndValuesAreOneSplitWhoseGradientIsOneCopy) {
  constexpr std::int64_t kLayers = 3;
  const auto model = make_language_model(GptConfig{
      .vocabulary = 64, .context = 16, .layers = kLayers, .width = 32, .heads = 2, .dropout = 0});
  at::Tensor loss;
  const auto forward = operators_of([&] {
    loss = model->loss(at::arange(2 * 17).remainder(64).view({2, 17}));
  });
  EXPECT_EQ(count_of(forward, "split"), kLayers);
  const auto backward = operators_of([&] { loss.backward(); });
  EXPECT_EQ(count_of(backward, "cat"), kLayers);
  for (const char* name : {"select_backward", "slice_backward"})
    EXPECT_EQ(count_of(backward, name), 0) << name;
}

TEST(CrossEntropy, ComputesItsGradientAlongWhereTheExpectedOneComes) {
  constexpr std::int64_t kRows = 40, kVocabulary = 90;
  const at::Tensor targets = at::arange(kRows, at::kLong).mul(11).remainder(kVocabulary);
  const at::Tensor expected_gradient = at::ones({});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const double factor : {1.0, 1.0, 0.37, 0.37, 3.0, 1.0}) {
      const at::Tensor values =
          (at::arange(kRows * kVocabulary, at::kFloat).sin() * 5).to(type).view({kRows, -1});
      const at::Tensor plain = values.clone().requires_grad_(), logits = plain.detach().clone();
      (at::cross_entropy_loss(plain.to(at::kFloat), targets) * factor).backward();
      const bool comes = expected_gradient.item<float>() == static_cast<float>(factor);
      at::Tensor loss;
      const auto forward = operators_of([&] {
        loss = cross_entropy_in_parts(logits.requires_grad_(), targets,
                                      {.expected_gradient = expected_gradient, .rows = 10});
      });
      const auto backward = operators_of([&] { (loss * factor).backward(); });
      EXPECT_TRUE(at::equal(logits.grad(), plain.grad())) << factor;
      EXPECT_EQ(count_of(forward, "_log_softmax_backward_data"), 4);
      EXPECT_EQ(count_of(backward, "_log_softmax"), comes ? 0 : 4) << factor;
      EXPECT_EQ(expected_gradient.item<float>(), static_cast<float>(factor));
    }
  }
}

TEST(CrossEntropy, ComputesNoGradientThatNobodyWants) {
  const at::Tensor logits = at::ones({4, 9}).requires_grad_(), targets = at::arange(4, at::kLong);
  const auto operators = operators_of([&] {
    const at::NoGradGuard no_grad;
    cross_entropy_in_parts(logits, targets, {.expected_gradient = at::ones({})});
  });
  EXPECT_EQ(count_of(operators, "_log_softmax"), 1);
  EXPECT_EQ(count_of(operators, "_log_softmax_backward_data"), 0);
}

}  // namespace
}  // namespace unishard::test
