// The memory of a micro-batch, beside what LibTorch's allocator then hands out.
#include "unishard/trainer/model_activations.hpp"

#include "unishard/trainer/causal_language_model.hpp"

#include "thread_group.hpp"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>

namespace unishard::test {
namespace {

using namespace trainer;

/// Adds up what the host's allocator hands out and takes back.
class AllocatedBytes : public c10::MemoryReportingInfoBase {
 public:
#if TORCH_VERSION_MAJOR >= 2
  using Total = std::size_t;
#else
  using Total = std::int64_t;
#endif
  void reportMemoryUsage(void*, std::int64_t bytes, Total, Total, c10::Device) override {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t now_ = 0, peak_ = 0;
};

struct Pass {
  const char* name;
  ModelConfig model;
  std::int64_t samples = 2, tokens = 128;
  DType compute = DType::Float32;
  bool recomputes = false;
};

void PrintTo(const Pass& pass, std::ostream* out) { *out << pass.name; }

/// Returns the peak of a pass over `pass.model`, whose gradients have their memory already.
std::int64_t measured_peak(const Pass& pass) {
  const std::lock_guard lock(construction_mutex());
  const auto model = make_language_model(pass.model);
  if (pass.compute == DType::BFloat16) model->to(at::kBFloat16);
  if (pass.recomputes) model->recompute_blocks({});
  for (at::Tensor& parameter : model->parameters())
    parameter.mutable_grad() = at::zeros_like(parameter);
  const at::Tensor windows = at::zeros({pass.samples, pass.tokens + 1}, at::kLong);
  const auto allocated = std::make_shared<AllocatedBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocated);
  model->loss(windows).backward();
  return allocated->peak();
}

class Activations : public testing::TestWithParam<Pass> {};

TEST_P(Activations, ArePredicted) {
  const Pass& pass = GetParam();
  const std::int64_t measured = measured_peak(pass);
  const std::int64_t predicted = activation_bytes(pass.model, {.samples = pass.samples,
                                                               .tokens = pass.tokens,
                                                               .compute = pass.compute,
                                                               .recomputes = pass.recomputes});
  EXPECT_LE(std::abs(predicted - measured), measured / 10)
      << predicted << " predicted, " << measured << " measured";
}

GptConfig gpt(double dropout = 0) {
  return {.context = 256, .layers = 6, .width = 128, .dropout = dropout};
}

LlamaConfig llama(std::int64_t window = 0) {
  return {.positions = 256, .layers = 6, .window = window};
}

GptConfig of_many_words() {
  return {.vocabulary = 20'000, .context = 256, .layers = 2, .width = 64};
}

LlamaConfig of_normed_queries() { return {.layers = 6, .qk_norm = true}; }

INSTANTIATE_TEST_SUITE_P(
    Passes, Activations,
    testing::Values(Pass{"Gpt", gpt()}, Pass{"GptOfOneSample", gpt(), 1, 256},
                    Pass{"GptWithDropout", gpt(0.1)},
                    Pass{"GptInBFloat16", gpt(), 2, 128, DType::BFloat16},
                    Pass{"GptWithDropoutInBFloat16", gpt(0.1), 2, 128, DType::BFloat16},
                    Pass{"GptRecomputed", gpt(), 2, 128, DType::Float32, true},
                    Pass{"GptOfManyWords", of_many_words()},
                    Pass{"GptOfManyWordsInBFloat16", of_many_words(), 2, 128, DType::BFloat16},
                    Pass{"Llama", llama()},
                    Pass{"LlamaInBFloat16", llama(), 2, 128, DType::BFloat16},
                    Pass{"LlamaRecomputed", llama(), 2, 128, DType::Float32, true},
                    Pass{"LlamaWithAWindow", llama(64), 2, 256},
                    Pass{"LlamaWithNormedQueries", of_normed_queries()}),
    [](const auto& pass) { return std::string(pass.param.name); });

}  // namespace
}  // namespace unishard::test
