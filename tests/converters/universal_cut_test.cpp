// How whole tensors are cut for tensor-parallel ranks again: what a universal folder says of each,
// compared with what DeepSpeed's own converter wrote.
#include "formats/deepspeed/universal_cut.hpp"

#include "unishard/converters/cut_patterns.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "containers/torch_file.hpp"
#include "containers/zip_reader.hpp"
#include "copied_run.hpp"
#include "expect.hpp"
#include "fixtures.hpp"
#include "temp_dir.hpp"
#include "whole_copy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace unishard::converters {
namespace {

using test::error_of;
using test::Fails;
using test::TempDir;
namespace fs = std::filesystem;

std::vector<std::string> write_universal(const Source& source, const Path& folder) {
  const Catalog& catalog = source.catalog();
  auto sink = make_deepspeed_universal_sink(posix_storage(), folder, "global_step3", catalog);
  copy(whole_copy(source, catalog), *sink, {.threads = 1, .buffer_bytes = 4096});
  auto notes = sink->notes();
  sink->commit();
  return notes;
}

/// What the loader does with a payload; a key that is missing has its default there.
std::vector<std::int64_t> cut_in(const Path& file) {
  const torch::TorchFile archive(torch::whole_file(posix_storage(), file));
  const auto number = [&](const char* key, std::int64_t otherwise) {
    const auto value = archive.root().find(key);
    if (!value) return otherwise;
    return value->is(torch::NodeKind::Bool) ? std::int64_t{value->boolean()} : value->integer();
  };
  return {number("cat_dim", 0), number("param_n_sub_params", 1), number("vocab_tensor", 0)};
}

TEST(UniversalCut, IsWhatDeepSpeedsOwnConverterWrites) {
  SKIP_WITHOUT_FIXTURES();
  std::size_t cut = 0;
  for (const std::string name : {"mg_tp2_stage1_fp32", "mg_pp2tp2_stage1_bf16_tied"}) {
    const TempDir dir;
    write_universal(*open_case(name), dir.path());
    const Path theirs = parallel_case("universal_" + name) / "checkpoint/global_step3/zero";
    for (const auto& entry : fs::directory_iterator(dir.path() / "global_step3/zero")) {
      if (!entry.is_directory()) continue;
      const Path other = theirs / entry.path().filename();
      for (const char* file : {"fp32.pt", "exp_avg.pt"}) {
        const auto ours = cut_in(entry.path() / file);
        EXPECT_EQ(ours, cut_in(other / file)) << entry.path() << file;
        cut += ours != std::vector<std::int64_t>{0, 1, 0};
      }
    }
  }
  EXPECT_GE(cut, 20u) << "rows, halves and vocabularies";
}

TEST(UniversalCut, PatternsStayInTheClientStateUntilNamesChange) {
  SKIP_WITHOUT_FIXTURES();
  const TempDir dir;
  const auto source = open_case("mg_tp2_stage1_fp32");
  const Json& client = source->catalog().client_state;
  EXPECT_EQ(client[kCutPatterns]["original_vocab_size"], 29);
  write_universal(*source, dir.path());
  EXPECT_EQ(open_source(posix_storage(), dir.path())->catalog().client_state, client);
  Json changed = client;
  EXPECT_TRUE(erase_cut_patterns(changed));
  EXPECT_TRUE(changed.is_null());
  EXPECT_FALSE(erase_cut_patterns(changed));
}

TEST(UniversalCut, RulesOfTheUsersAreKept) {
  SKIP_WITHOUT_FIXTURES();
  const auto known = open_case("mg_tp2_stage1_fp32");
  const Json rules = known->catalog().client_state[kCutPatterns];
  const TempDir dir;
  write_universal(
      *open_source(posix_storage(), parallel_case("mg_tp2_stage1_fp32_no_info") / "checkpoint",
                   {.merge_rules = rules}),
      dir.path());
  EXPECT_EQ(open_source(posix_storage(), dir.path())->catalog().client_state,
            known->catalog().client_state);
  const Path zero = dir.path() / "global_step3/zero";
  EXPECT_EQ(cut_in(zero / "layers.0.dense.weight/fp32.pt"), (std::vector<std::int64_t>{1, 1, 0}));
}

Json with(const char* key, Json value) { return {{kCutPatterns, {{key, std::move(value)}}}}; }

TEST(UniversalCut, EqualSubParametersAreTold) {
  const deepspeed::UniversalCuts cuts(with(
      "parameter_with_sub_params",
      Json::array({{{"patterns", {"a\\.qkv"}}, {"shape", {3, -1}}, {"partition_dim", 0}},
                   {{"patterns", {"a\\.even"}}, {"shape", {-1, {4, 4}}}, {"partition_dim", 1}},
                   {{"patterns", {"a\\.gqa"}}, {"shape", {{8, 4}, -1}}, {"partition_dim", 0}}})));
  EXPECT_EQ(cuts.cut_of("a.qkv.weight").sub_parameters, 3u);
  EXPECT_EQ(cuts.cut_of("a.even").dimension, 1u);
  EXPECT_EQ(cuts.cut_of("a.even").sub_parameters, 2u);
  EXPECT_EQ(cuts.cut_of("b.qkv").sub_parameters, 1u) << "as re.match() begins";
  EXPECT_THAT(error_of([&] { cuts.cut_of("a.gqa"); }),
              Fails(ErrorCode::Unsupported, {"a.gqa", "parts of different sizes"}));
}

TEST(UniversalCut, WhatEveryRankHasWholeIsNotCut) {
  for (const char* first : {"tp_replicated_parameter_patterns", "parameter_to_average_patterns"}) {
    const Json lists = {{first, {"a\\.bias"}},
                        {"parameter_with_row_parallelism_patterns", {"a\\."}},
                        {"parameter_with_2_sub_params_cat_dim_0", {"a\\.bias"}}};
    const Json client = {{kCutPatterns, lists}};
    const deepspeed::UniversalCuts cuts(client);
    EXPECT_EQ(cuts.cut_of("a.weight").dimension, 1u);
    EXPECT_EQ(cuts.cut_of("a.bias").dimension, 0u);
    EXPECT_EQ(cuts.cut_of("a.bias").sub_parameters, 1u);
  }
}

TEST(UniversalCut, WhatIsNoPatternIsRefused) {
  const auto refuses = [](const Json& client, const std::string& text) {
    EXPECT_THAT(error_of([&] { const deepspeed::UniversalCuts cuts(client); }),
                Fails(ErrorCode::Unsupported, text))
        << client;
  };
  refuses(with("vocabulary_parameter_patterns", "x"), "is no list");
  refuses(with("parameter_with_row_parallelism_patterns", {1}), "what is no text");
  refuses(with("parameter_with_2_sub_params_cat_dim_0", {"a(?=b)"}), "is not understood");
  const Json sub = {{"patterns", {"a"}}, {"shape", {3}}, {"partition_dim", 1}};
  refuses(with("parameter_with_sub_params", Json::array({sub})), "has no size");
  refuses(with("parameter_with_sub_params", Json::array({1})), "is no sub-parameter");
  for (const Json& harmless : {Json(), Json::object(), Json{{kCutPatterns, "text"}}})
    EXPECT_EQ(deepspeed::UniversalCuts(harmless).cut_of("a").dimension, 0u);
}

TEST(UniversalCut, ExpertsAreForOneExpertParallelRank) {
  SKIP_WITHOUT_FIXTURES();
  const TempDir dir;
  EXPECT_THAT(write_universal(*open_case("moe_ep2_stage1_bf16"), dir.path()),
              testing::Contains(testing::HasSubstr("resume with ep_size 1")));
}

}  // namespace
}  // namespace unishard::converters
