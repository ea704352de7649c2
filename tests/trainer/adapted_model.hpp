#pragma once
// A language model as adapters train it: a large frozen base, part of it in int8, and a few small
// trained matrices. The first unit is frozen and its input needs no gradient; another frozen unit
// lies between trained ones, so that gradients pass through its weights.
#include "unishard/trainer/causal_language_model.hpp"
#include "unishard/trainer/dropout.hpp"
#include "unishard/trainer/sharded.hpp"

#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::test {

struct AdaptedSizes {
  std::int64_t vocabulary = 64;
  std::int64_t width = 40;
  std::int64_t adapter = 4;  ///< inner width of an adapter
  int blocks = 2;            ///< frozen units, and as many with adapters
  double dropout = 0.1;
  double shift = 0;  ///< added to one frozen weight
};

inline void freeze(torch::nn::Module& module) {
  for (at::Tensor& each : module.parameters()) each.requires_grad_(false);
}

/// A matrix of int8 with a scale for each row, both frozen.
struct QuantizedLinearImpl : torch::nn::Module {
  explicit QuantizedLinearImpl(std::int64_t width)
      : weight(register_parameter("weight", at::randint(-127, 128, {width, width}, at::kChar),
                                  /*requires_grad=*/false)),
        scale(register_parameter("scale", at::randn({width, 1}) / (127.0 * 6.0),
                                 /*requires_grad=*/false)) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::linear(x, weight.to(x.scalar_type()) * scale);
  }
  at::Tensor weight, scale;
};
TORCH_MODULE(QuantizedLinear);

struct FrozenBlockImpl : torch::nn::Module {
  explicit FrozenBlockImpl(const AdaptedSizes& sizes)
      : norm(register_module("norm",
                             torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))),
        up(register_module("up", torch::nn::Linear(sizes.width, sizes.width))),
        down(register_module("down", QuantizedLinear(sizes.width))) {
    freeze(*this);
    up->bias[0] += sizes.shift;
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(up(norm(x)).tanh()); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up;
  QuantizedLinear down;
};

/// The base's product comes first, so that its backward pass comes after the adapter's.
struct AdaptedBlockImpl : torch::nn::Module {
  explicit AdaptedBlockImpl(const AdaptedSizes& sizes)
      : base(register_module("base", torch::nn::Linear(sizes.width, sizes.width))),
        dropout(sizes.dropout) {
    freeze(*this);
    const auto matrix = [](std::int64_t in, std::int64_t out) {
      return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
    };
    adapter_in = register_module("adapter_in", matrix(sizes.width, sizes.adapter));
    adapter_out = register_module("adapter_out", matrix(sizes.adapter, sizes.width));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = base(x);
    const at::Tensor kept = is_training() ? trainer::dropout(x, dropout) : x;
    return x + (y + adapter_out(adapter_in(kept))).tanh();
  }
  torch::nn::Linear base, adapter_in{nullptr}, adapter_out{nullptr};
  double dropout;
};

/// The transpose of the embedding, whose weight it shares.
struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const at::Tensor& shared)
      : weight(register_parameter("weight", shared, shared.requires_grad())) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(Head);

struct AdaptedModelImpl : trainer::CausalLanguageModel {
  explicit AdaptedModelImpl(const AdaptedSizes& sizes = {})
      : embedding(
            register_module("embedding", torch::nn::Embedding(sizes.vocabulary, sizes.width))) {
    freeze(*embedding);
    for (int i = 0; i < sizes.blocks; ++i) {
      frozen.emplace_back(sizes);
      register_module("frozen" + std::to_string(i), frozen.back());
      adapted.emplace_back(sizes);
      register_module("adapted" + std::to_string(i), adapted.back());
    }
    norm =
        register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})));
    head = register_module("head", Head(embedding->weight));
  }
  at::Tensor forward(const at::Tensor& tokens) override {
    at::Tensor x = embedding(tokens);
    for (std::size_t i = 0; i < frozen.size(); ++i) {
      x = run_block(frozen[i], x);
      x = run_block(adapted[i], x);
    }
    return head(norm(x));
  }
  torch::nn::Embedding embedding;
  std::vector<trainer::Sharded<FrozenBlockImpl>> frozen;
  std::vector<trainer::Sharded<AdaptedBlockImpl>> adapted;
  torch::nn::LayerNorm norm{nullptr};
  Head head{nullptr};
};
TORCH_MODULE(AdaptedModel);

}  // namespace unishard::test
