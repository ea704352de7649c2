// The promise of the project in one test: any world size and stage resumes from any other with the
// same bits. UNISHARD_MATRIX=all takes more stages, world sizes and recipes beside the first
// test's.
#include "ranks.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace unishard::test {
namespace {

void run_matrix(const std::string& model, const std::string& dtype, const std::string& stages,
                const std::string& worlds, const std::string& device = "cpu") {
  const TempDir folder;
  const int processes = worlds.back() - '0';
  const auto results = run_ranks({UNISHARD_TESTS_BIN "/matrix_driver", folder.path().string(),
                                  model, dtype, stages, worlds, device},
                                 processes);
  const std::size_t combinations = stages.size() * worlds.size();
  const std::string expected =
      fmt::format("{} jobs, 0 differ", combinations + combinations * combinations);
  for (const auto& result : results) fmt::print("{}", result.out);
  EXPECT_NE(results[0].out.find(expected), std::string::npos) << expected;
  fmt::print("{} {} on {}: {} (stage, W) -> (stage', W') pairs bit-equal\n", model, dtype, device,
             combinations * combinations);
}

bool takes_all() {
  const char* const text = std::getenv("UNISHARD_MATRIX");
  return text != nullptr && std::string(text) == "all";
}

TEST(Matrix, EveryPairOfStageAndWorldSizeInFp32) { run_matrix("gpt", "float32", "0123", "12345"); }

TEST(Matrix, ALlamaInFp32) { run_matrix("llama", "float32", "0123", "13"); }

TEST(Matrix, ALlamaInBf16) { run_matrix("llama", "bfloat16", "0123", takes_all() ? "123" : "13"); }

TEST(Matrix, ASubsetInBf16) { run_matrix("gpt", "bfloat16", "0123", takes_all() ? "124" : "24"); }

TEST(Matrix, ASubsetInFp16) { run_matrix("gpt", "float16", "0123", "13"); }

TEST(Matrix, MuonWhoseMatricesAreCutAnywhere) {
  run_matrix("gpt:Muon:WarmupLR", "float32", "0123", takes_all() ? "123" : "13");
  run_matrix("llama:Muon:WarmupLR", "bfloat16", takes_all() ? "0123" : "13", "14");
  run_matrix("gpt:Muon:WarmupLR", "float16", takes_all() ? "0123" : "02", takes_all() ? "13" : "2");
}

TEST(Matrix, AdaptersOnAFrozenBase) {
  run_matrix("adapted", "float32", "0123", takes_all() ? "123" : "13");
  run_matrix("adapted", "bfloat16", takes_all() ? "0123" : "13", "14");
  run_matrix("adapted", "float16", "03", takes_all() ? "12" : "2");
}

/// Optimizer and schedule.
using Recipe = std::pair<std::string, std::string>;
class MatrixRecipes : public testing::TestWithParam<Recipe> {};

/// All pairs, or every optimizer with one schedule and every schedule with AdamW, and with Muon,
/// which has two rates.
std::vector<Recipe> recipes() {
  const std::array optimizers = {"Adam", "AdamW", "Adagrad", "Lamb", "Lion", "Muon", "SGD"};
  const std::array schedules = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle",
                                "LRRangeTest"};
  std::vector<Recipe> out;
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    const std::string optimizer = optimizers[i];
    const bool with_all = takes_all() || optimizer == "AdamW" || optimizer == "Muon";
    for (std::size_t j = 0; j < schedules.size(); ++j)
      if (with_all || i % schedules.size() == j) out.emplace_back(optimizer, schedules[j]);
  }
  return out;
}

TEST_P(MatrixRecipes, ResumesBitForBit) {
  const auto [optimizer, schedule] = GetParam();
  run_matrix(fmt::format("gpt:{}:{}", optimizer, schedule), "float32", "03", "13");
}

INSTANTIATE_TEST_SUITE_P(EveryOptimizerAndSchedule, MatrixRecipes, testing::ValuesIn(recipes()),
                         [](const auto& param) { return param.param.first + param.param.second; });

TEST(Matrix, ASubsetOnADeviceThatFindsRaces) {
  run_matrix("gpt", "float32", "0123", "12", "guarded");
  run_matrix("adapted", "bfloat16", "0123", takes_all() ? "12" : "2", "guarded");
  run_matrix("gpt", "float16", takes_all() ? "0123" : "23", takes_all() ? "12" : "2", "guarded");
  run_matrix("llama", "bfloat16", "03", "13", "guarded");
  run_matrix("llama:Muon:WarmupLR", "bfloat16", "03", "13", "guarded");
}

}  // namespace
}  // namespace unishard::test
