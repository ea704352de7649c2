// The operators of a training step of each language model are known ones. The promise of equal bits
// on a device needs a deterministic kernel of each, or a scope of LibTorch that takes one
// (DeterministicScope), and on the CPU nothing would tell of an operator that has none.
#include "unishard/trainer/causal_language_model.hpp"
#include "unishard/trainer/engine.hpp"

#include "recorded_operators.hpp"
#include "small_model.hpp"

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace unishard::test {
namespace {

using namespace trainer;
using testing::IsEmpty;

/// What CUDA computes without atomic additions, or in one order where LibTorch's deterministic
/// algorithms are on. Names are LibTorch's, without "aten::".
const std::set<std::string> kKnown = {
    // Views and allocations compute nothing.
    "_reshape_alias", "_unsafe_view", "as_strided", "contiguous", "detach", "empty", "empty_like",
    "empty_strided", "expand", "lift_fresh", "narrow", "reshape", "resize_", "resolve_conj",
    "result_type", "select", "slice", "split", "squeeze", "t", "to", "transpose", "unsqueeze",
    "view", "view_as",
    // A number of the host's.
    "_local_scalar_dense", "item",
    // Products of matrices, on one stream.
    "addmm", "addmv_", "bmm", "linear", "matmul", "mm", "mv",
    // Sums along rows, each by one block of threads.
    "_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data",
    "layer_norm", "mean", "native_layer_norm", "native_layer_norm_backward", "nll_loss",
    "nll_loss_backward", "nll_loss_forward", "softmax", "sum",
    // Reads of rows, and the gradient of an embedding, which sorts them.
    "embedding", "embedding_backward", "embedding_dense_backward", "gather", "index_select",
    // Element by element.
    "_to_copy", "add", "add_", "addcmul_", "arange", "bernoulli_", "cat", "clone", "copy_", "cos",
    "div", "div_", "fill_", "full", "ge", "gelu", "gelu_backward", "logical_and", "logical_not",
    "lt", "masked_fill", "masked_fill_", "mul", "mul_", "native_dropout_backward", "neg", "ones",
    "ones_like", "pow", "reciprocal", "remainder", "rsqrt", "rsqrt_", "silu", "silu_backward",
    "sin", "slice_backward", "stack", "sub", "tril", "zero_", "zeros", "zeros_like"};

/// Returns the operators of two steps.
template <class Model>
std::set<std::string> operators_of_steps(const Model& shape, DType compute) {
  std::set<std::string> names;
  run_threads(1, [&](Communicator& communicator) {
    const Config config = small_config(3, compute);
    const auto model = [&] {
      const std::lock_guard lock(construction_mutex());
      const ConstructionScope scope(placement_for(config, communicator));
      return make_language_model(shape);
    }();
    Engine engine(model, communicator, config, {});
    const auto recorded = operators_of([&] {
      for (int i = 0; i < 2; ++i) {
        engine.train_batch([&](const MicroBatch& batch) {
          return model->loss(
              at::arange(batch.samples * 17).remainder(64).view({batch.samples, 17}));
        });
      }
    });
    for (const RecordedOperator& each : recorded) names.insert(each.name);
  });
  return names;
}

template <class Model>
void expect_known(const Model& shape) {
  for (const DType compute : {DType::Float32, DType::BFloat16}) {
    std::set<std::string> operators = operators_of_steps(shape, compute);
    EXPECT_GT(operators.size(), 30u);
    std::erase_if(operators, [](const std::string& name) { return kKnown.contains(name); });
    EXPECT_THAT(operators, IsEmpty());
  }
}

TEST(KnownOperators, AreAllThatAGptNeeds) {
  expect_known(GptConfig{
      .vocabulary = 64, .context = 16, .layers = 2, .width = 32, .heads = 2, .dropout = 0.1});
}

TEST(KnownOperators, AreAllThatALlamaNeeds) {
  expect_known(LlamaConfig{.vocabulary = 64,
                           .positions = 16,
                           .layers = 2,
                           .width = 32,
                           .inner = 48,
                           .dropout = 0.1,
                           .qkv_bias = true,
                           .qk_norm = true,
                           .window = 8});
}

}  // namespace
}  // namespace unishard::test
