// Weights of other programs' GPT-2 and Llama through the engine: every parameter arrives bit by
// bit, however the file names and stores it.
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"
#include "unishard/trainer/causal_language_model.hpp"
#include "unishard/trainer/construction.hpp"
#include "unishard/trainer/engine.hpp"
#include "unishard/trainer/gpt.hpp"

#include "expect.hpp"
#include "fixtures.hpp"
#include "temp_dir.hpp"
#include "thread_group.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

namespace unishard::test {
namespace {

using testing::StrEq;

using namespace trainer;

using Weights = std::vector<std::pair<std::string, at::Tensor>>;

constexpr GptConfig kShape{.vocabulary = 31, .context = 10, .layers = 2, .width = 12, .heads = 2};

/// Under the engine's names, the head left out; no two elements are alike.
Weights new_weights() {
  const std::lock_guard lock(construction_mutex());
  Gpt model(kShape);
  Weights weights;
  double first = 0;
  for (const auto& each : model->named_parameters()) {
    if (each.key() == "lm_head.weight") continue;
    const auto count = static_cast<double>(each.value().numel());
    weights.emplace_back(
        each.key(),
        at::arange(first, first + count, at::kFloat).mul(0.001).view(each.value().sizes()));
    first += count;
  }
  return weights;
}

at::Tensor& at_name(Weights& weights, const std::string& name) {
  const auto found = std::ranges::find(weights, name, &std::pair<std::string, at::Tensor>::first);
  EXPECT_NE(found, weights.end()) << name;
  return found->second;
}

Weights prefixed(Weights weights) {
  for (auto& [name, tensor] : weights) name = "transformer." + name;
  return weights;
}

bool is_linear(const std::string& name) {
  return name.find(".c_") != std::string::npos && name.ends_with(".weight");
}

void write_weights(const Path& path, const Weights& weights) {
  Catalog catalog;
  for (const auto& [name, tensor] : weights) {
    Shape shape;
    for (const std::int64_t size : tensor.sizes())
      shape.push_back(static_cast<std::uint64_t>(size));
    catalog.tensors.push_back({.fqn = name,
                               .state = std::string(state::kWeights),
                               .shape = shape,
                               .crc64 = {},
                               .stats = {}});
  }
  const auto sink = converters::make_safetensors_sink(posix_storage(), path, catalog, {});
  for (std::size_t f = 0; f < sink->fragments().size(); ++f) {
    const Fragment& fragment = sink->fragments()[f];
    const at::Tensor tensor = weights[fragment.tensor].second.contiguous();
    const std::span all(static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes());
    sink->write(f, fragment.range,
                all.subspan(fragment.range.begin * 4, fragment.range.size() * 4));
  }
  sink->commit();
}

/// Loads `path` on `world` thread ranks at `stage` and calls check(rank's report, parameters).
void load(
    const Path& path, const ModelConfig& shape, std::uint32_t world, std::uint32_t stage,
    const std::function<void(const LoadReport&, const std::map<std::string, at::Tensor>&)>& check) {
  Config config;
  config.batch = {.train = 4, .micro = 1, .accumulation = {}};
  config.stage = stage;
  run_threads(world, [&](Communicator& communicator) {
    const auto build = [&] {
      const std::lock_guard lock(construction_mutex());
      const ConstructionScope scope(placement_for(config, communicator));
      return make_language_model(shape);
    };
    const auto model = build();
    EngineOptions options;
    options.foreign_names = model_foreign_names(shape);
    Engine engine(model, communicator, config, options);
    const LoadReport report = engine.load_checkpoint(path);
    EXPECT_EQ(engine.global_steps(), 0);
    const GatheredScope gathered(engine);
    std::map<std::string, at::Tensor> parameters;
    for (const auto& each : model->named_parameters())
      parameters[each.key()] = each.value().detach().clone();
    check(report, parameters);
  });
}

void expect_loads(const Path& path, const Weights& expected, const std::string& note = {}) {
  for (const auto& [world, stage] : {std::pair{1u, 0u}, {2u, 1u}, {2u, 3u}, {3u, 3u}}) {
    SCOPED_TRACE("world " + std::to_string(world) + " stage " + std::to_string(stage));
    load(path, kShape, world, stage, [&](const LoadReport& report, const auto& parameters) {
      for (const auto& [name, tensor] : expected)
        EXPECT_TRUE(at::equal(parameters.at(name), tensor)) << name;
      const bool noted = std::ranges::any_of(report.notes, [&](const std::string& line) {
        return line.find(note) != std::string::npos;
      });
      EXPECT_TRUE(noted) << note << " is not in " << testing::PrintToString(report.notes);
    });
  }
}

Error refusal(const Path& path) {
  return error_of([&] { load(path, kShape, 1, 0, [](const LoadReport&, const auto&) {}); });
}

class GptImport : public testing::Test {
 protected:
  Path file() const { return folder_.path() / "model.safetensors"; }
  Weights weights_ = new_weights();
  TempDir folder_;
};

TEST_F(GptImport, NamesWithAndWithoutThePrefix) {
  write_weights(file(), prefixed(weights_));
  expect_loads(file(), weights_);
  const Path hub = folder_.path() / "hub.safetensors";
  write_weights(hub, weights_);
  expect_loads(hub, weights_);
}

TEST_F(GptImport, MaskBuffersAreLeftOutWithANote) {
  Weights saved = prefixed(weights_);
  for (const char* layer : {"0", "1"}) {
    const std::string attention = std::string("transformer.h.") + layer + ".attn.";
    saved.emplace_back(attention + "bias", at::ones({1, 1, 10, 10}).tril());
    saved.emplace_back(attention + "masked_bias", at::full({}, -1e4));
  }
  write_weights(file(), saved);
  expect_loads(file(), weights_, "left out, as no state of the model: transformer.h.0.attn.bias, ");
}

TEST_F(GptImport, TransposedMatricesAreTurned) {
  Weights saved = prefixed(weights_);
  for (auto& [name, tensor] : saved) {
    if (is_linear(name)) tensor = tensor.t().contiguous();
  }
  write_weights(file(), saved);
  expect_loads(file(), weights_, "8 matrices are stored as their transpose");
}

TEST_F(GptImport, AHeadThatIsACopyLoadsAndOneThatIsAnotherIsRefused) {
  Weights saved = prefixed(weights_);
  saved.emplace_back("lm_head.weight", at_name(weights_, "wte.weight").clone());
  write_weights(file(), saved);
  expect_loads(file(), weights_, "transformer.wte.weight is a copy of lm_head.weight");
  saved.back().second[30][11] += 1;
  const Path untied = folder_.path() / "untied.safetensors";
  write_weights(untied, saved);
  EXPECT_THAT(
      refusal(untied),
      Fails(ErrorCode::Mismatch,
            StrEq("lm_head.weight [weights] and transformer.wte.weight [weights] are one tensor in "
                  "this model, and differ in the checkpoint")));
}

TEST_F(GptImport, AHeadAloneIsTheEmbedding) {
  Weights saved = prefixed(weights_);
  std::ranges::find(saved, "transformer.wte.weight", &Weights::value_type::first)->first =
      "lm_head.weight";
  write_weights(file(), saved);
  expect_loads(file(), weights_);
}

TEST_F(GptImport, WhatIsMissingOrUnknownIsListed) {
  Weights saved = prefixed(weights_);
  std::ranges::find(saved, "transformer.ln_f.bias", &Weights::value_type::first)->first =
      "score.weight";
  write_weights(file(), saved);
  EXPECT_THAT(refusal(file()), Fails(ErrorCode::Mismatch, {"missing: ln_f.bias [fp32]",
                                                           "unexpected: score.weight [weights]"}));
}

TEST_F(GptImport, ASlashBehindAFileIsNoFolder) {
  write_weights(file(), weights_);
  expect_loads(file().string() + "/", weights_);
  EXPECT_THROW(load(folder_.path() / "gone.safetensors/", kShape, 1, 0, {}), Error);
}

TEST(GptImportFixtures, EveryFolderThatTransformersWrote) {
  SKIP_WITHOUT_FIXTURES();
  for (const char* name :
       {"hf_gpt2_single", "hf_gpt2_sharded", "hf_gpt2_one_tensor_per_file", "hf_gpt2_variant",
        "hf_pytorch_bin_sharded", "hf_llama_tied", "hf_llama_bf16_sharded"}) {
    SCOPED_TRACE(name);
    const Path folder = fixtures() / "safetensors" / name, model = folder / "checkpoint";
    const ModelConfig shape =
        model_from_hugging_face(read_json(model / "config.json"), "config.json");
    const auto expected = converters::open_source(posix_storage(), folder / "expected.safetensors");
    for (const auto& [world, stage] : {std::pair{1u, 0u}, {2u, 3u}}) {
      load(model, shape, world, stage, [&](const LoadReport&, const auto& parameters) {
        std::size_t compared = 0;
        for (std::size_t i = 0; i < expected->catalog().tensors.size(); ++i) {
          const TensorInfo& tensor = expected->catalog().tensors[i];
          const std::string key =
              tensor.fqn.starts_with("transformer.") ? tensor.fqn.substr(12) : tensor.fqn;
          if (!parameters.contains(key)) continue;
          const at::ScalarType type = tensor.dtype == DType::Float16    ? at::kHalf
                                      : tensor.dtype == DType::BFloat16 ? at::kBFloat16
                                                                        : at::kFloat;
          at::Tensor values = at::empty(parameters.at(key).sizes(), type);
          ASSERT_EQ(values.nbytes(), tensor.bytes());
          expected->read(i, {0, tensor.elements()},
                         {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
          EXPECT_TRUE(at::equal(parameters.at(key), values.to(at::kFloat))) << tensor.fqn;
          ++compared;
        }
        EXPECT_GE(compared, parameters.size() - 1);  // the head may be listed, or not
      });
    }
  }
}

}  // namespace
}  // namespace unishard::test
