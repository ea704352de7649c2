// The promise of the project in one test: any world size and stage resumes from any other with the
// same bits.
#include "ranks.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

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

TEST(Matrix, EveryPairOfStageAndWorldSizeInFp32) { run_matrix("gpt", "float32", "0123", "12345"); }

TEST(Matrix, ALlamaInFp32) { run_matrix("llama", "float32", "0123", "13"); }

TEST(Matrix, ALlamaInBf16) { run_matrix("llama", "bfloat16", "0123", "123"); }

TEST(Matrix, ASubsetInBf16) { run_matrix("gpt", "bfloat16", "0123", "124"); }

TEST(Matrix, ASubsetInFp16) { run_matrix("gpt", "float16", "0123", "13"); }

TEST(Matrix, MuonWhoseMatricesAreCutAnywhere) {
  run_matrix("gpt:Muon:WarmupLR", "float32", "0123", "123");
  run_matrix("llama:Muon:WarmupLR", "bfloat16", "0123", "14");
  run_matrix("gpt:Muon:WarmupLR", "float16", "0123", "13");
}

TEST(Matrix, AdaptersOnAFrozenBase) {
  run_matrix("adapted", "float32", "0123", "123");
  run_matrix("adapted", "bfloat16", "0123", "14");
  run_matrix("adapted", "float16", "03", "12");
}

/// Optimizer and schedule.
class MatrixRecipes : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(MatrixRecipes, ResumesBitForBit) {
  const auto [optimizer, schedule] = GetParam();
  run_matrix(fmt::format("gpt:{}:{}", optimizer, schedule), "float32", "03", "13");
}

INSTANTIATE_TEST_SUITE_P(
    EveryOptimizerAndSchedule, MatrixRecipes,
    testing::Combine(testing::Values("Adam", "AdamW", "Adagrad", "Lamb", "Lion", "Muon", "SGD"),
                     testing::Values("WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle",
                                     "LRRangeTest")));

TEST(Matrix, ASubsetOnADeviceThatFindsRaces) {
  run_matrix("gpt", "float32", "0123", "12", "guarded");
  run_matrix("adapted", "bfloat16", "0123", "12", "guarded");
  run_matrix("llama", "bfloat16", "03", "13", "guarded");
  run_matrix("llama:Muon:WarmupLR", "bfloat16", "03", "13", "guarded");
}

}  // namespace
}  // namespace unishard::test
