// Regular checkpoints of tensor-parallel runs, read whole and compared bit by bit with what the
// ranks had in memory; what is refused of them.
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "containers/pickle_json.hpp"
#include "copied_run.hpp"
#include "expect.hpp"
#include "expected_tensors.hpp"
#include "fixtures.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"
#include "torch_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace unishard::converters {
namespace {

using test::error_of;
using test::Fails;
namespace fs = std::filesystem;

const std::vector<std::string> kTensorParallel = {
    "autotp2_stage0_fp32",        "autotp2_stage1_bf16",
    "autotp2_stage1_fp32_phi3",   "autotp2_stage1_fp32_uneven_bias",
    "autotp2_stage2_fp32_tied",   "autotp2dp2_stage2_bf16",
    "autotp2dp2_stage3_fp32",     "mg_tp2_stage1_fp32",
    "mg_tp2dp2_stage2_bf16_tied", "mg_tp2dp2_stage3_bf16"};

TEST(DeepSpeedTensorParallel, EveryFixtureGivesTheBitsOfTheWholeModel) {
  SKIP_WITHOUT_FIXTURES();
  std::size_t tensors = 0;
  for (const std::string& name : kTensorParallel) {
    SCOPED_TRACE(name);
    const auto source = open_case(name);
    tensors += compare_tensors(*source, parallel_case(name) / "expected.safetensors");
    const Catalog& catalog = source->catalog();
    const SortedJson about = about_case(name);
    expect_counts(catalog, about);
    EXPECT_EQ(SortedJson::parse(catalog.groups.dump()), about["param_groups"]);
    std::map<std::string, std::string> aliases;
    for (const Alias& alias : catalog.aliases) aliases[alias.fqn] = alias.target;
    EXPECT_EQ(SortedJson(aliases), about["tied"]);
    ASSERT_TRUE(catalog.client_state.is_object()) << "patterns are kept";
    EXPECT_FALSE(catalog.client_state["universal_checkpoint_info"].contains("affine_map"));
    EXPECT_TRUE(notes_of(*source).empty()) << notes_of(*source).front();
  }
  EXPECT_EQ(tensors, 990u);
}

TEST(DeepSpeedTensorParallel, EqualsTheUniversalCheckpointMadeOfIt) {
  SKIP_WITHOUT_FIXTURES();
  for (const std::string name :
       {"autotp2_stage1_fp32_phi3", "autotp2dp2_stage3_fp32", "mg_tp2_stage1_fp32"}) {
    SCOPED_TRACE(name);
    const auto regular = open_case(name), universal = open_case("universal_" + name);
    EXPECT_EQ(regular->catalog().step, universal->catalog().step);
    EXPECT_EQ(regular->catalog().groups, universal->catalog().groups);
    EXPECT_EQ(regular->catalog().world_size, universal->catalog().world_size);
    EXPECT_EQ(regular->catalog().client_state, universal->catalog().client_state);
    for (std::size_t i = 0; i < universal->catalog().tensors.size(); ++i) {
      const TensorInfo& tensor = universal->catalog().tensors[i];
      const auto found = regular->catalog().find(tensor.fqn, tensor.state);
      ASSERT_TRUE(found) << tensor.label();
      EXPECT_EQ(regular->catalog().tensors[*found].group, tensor.group) << tensor.label();
      EXPECT_TRUE(read_all(*regular, *found) == read_all(*universal, i)) << tensor.label();
    }
    EXPECT_EQ(regular->catalog().tensors.size(), universal->catalog().tensors.size());
    EXPECT_TRUE(notes_of(*universal).empty()) << notes_of(*universal).front();
  }
}

TEST(DeepSpeedTensorParallel, RowsOfPaddingAreARemark) {
  SKIP_WITHOUT_FIXTURES();
  const auto remarks = open_case("mg_tp2_stage1_fp32")->remarks();
  ASSERT_EQ(remarks.size(), 2u);
  EXPECT_EQ(remarks[0],
            "embedding.word_embeddings.weight: 3 rows of padding behind original_vocab_size were "
            "dropped");
}

/// A range that begins and ends inside of a row takes from all ranks.
TEST(DeepSpeedTensorParallel, AnyRangeIsThatOfTheWholeTensor) {
  SKIP_WITHOUT_FIXTURES();
  for (const std::string name : {"autotp2_stage1_fp32_uneven_bias", "autotp2_stage1_fp32_phi3"}) {
    const auto source = open_case(name);
    for (std::size_t i = 0; i < source->catalog().tensors.size(); ++i) {
      const TensorInfo& tensor = source->catalog().tensors[i];
      const std::vector<std::byte> all = read_all(*source, i);
      const std::uint64_t width = size_of(tensor.dtype), step = tensor.elements() / 7 + 1;
      for (std::uint64_t begin = 0; begin < tensor.elements(); begin += step) {
        const std::uint64_t end = std::min(tensor.elements(), begin + 2 * step);
        std::vector<std::byte> part((end - begin) * width);
        source->read(i, {begin, end}, part);
        EXPECT_TRUE(
            std::ranges::equal(part, std::span(all).subspan(begin * width, (end - begin) * width)))
            << tensor.label();
      }
    }
  }
}

TEST(DeepSpeedTensorParallel, WithoutRulesIsRefusedWithWhatToDo) {
  SKIP_WITHOUT_FIXTURES();
  const Error error = error_of([] { open_case("mg_tp2_stage1_fp32_no_info"); });
  EXPECT_THAT(error, Fails(ErrorCode::Unsupported,
                           {"mp_rank_00", "universal_checkpoint_info", "is missing"}));
  EXPECT_THAT(error.hint(), testing::HasSubstr("--merge-rules"));
}

/// What Megatron's script for universal checkpoints says about this model.
Json rules_of_the_user() {
  return {{"vocabulary_parameter_patterns",
           {"(.*\\.)?word_embeddings\\.weight", "(.*\\.)?output_layer\\.weight"}},
          {"tp_replicated_parameter_patterns",
           {"(.*\\.)?(position_embeddings|\\w*layernorm)\\.\\w+", "(.*\\.)?dense\\.bias",
            "(.*\\.)?dense_4h_to_h\\.bias"}},
          {"parameter_to_average_patterns", {"(.*\\.)?gain"}},
          {"parameter_with_row_parallelism_patterns",
           {"(.*\\.)?dense\\.weight", "(.*\\.)?dense_4h_to_h\\.weight"}},
          {"parameter_with_2_sub_params_cat_dim_0", {"(.*\\.)?dense_h_to_4h\\.(weight|bias)"}},
          {"original_vocab_size", 29}};
}

std::unique_ptr<Source> open_with_rules(const std::string& name, const Json& rules) {
  return open_source(posix_storage(), parallel_case(name) / "checkpoint", {.merge_rules = rules});
}

TEST(MergeRules, OfTheUserGiveTheBitsOfTheWholeModel) {
  SKIP_WITHOUT_FIXTURES();
  for (const std::string name : {"mg_tp2_stage1_fp32_no_info", "mg_tp2_stage1_fp32"}) {
    const auto source = open_with_rules(name, rules_of_the_user());
    EXPECT_GT(compare_tensors(*source, parallel_case(name) / "expected.safetensors"), 90u);
    const bool has_own = !name.ends_with("no_info");
    EXPECT_THAT(notes_of(*source),
                testing::ElementsAreArray(
                    std::vector(has_own ? 1 : 0, testing::HasSubstr("--merge-rules is given"))));
  }
}

TEST(MergeRules, ThatContradictTheTensorsAreRefusedBeforeAnythingIsRead) {
  SKIP_WITHOUT_FIXTURES();
  const auto changed = [](const char* key, Json value) {
    Json rules = rules_of_the_user();
    rules[key] = std::move(value);
    return rules;
  };
  struct Case {
    Json rules;
    std::string words;
  };
  const Case cases[] = {
      {Json::array(), "no object"},
      {changed("row_parallel", Json::array()), "row_parallel"},
      {changed("parameter_to_average_patterns", "gain"), "not a list"},
      {changed("parameter_to_average_patterns", {7}), "no text"},
      // A layer norm is forgotten: it would become twice as long.
      {changed("tp_replicated_parameter_patterns",
               {"(.*\\.)?position_embeddings\\.\\w+", "(.*\\.)?dense\\.bias",
                "(.*\\.)?dense_4h_to_h\\.bias"}),
       "layernorm"},
      {changed("parameter_with_row_parallelism_patterns",
               {"(.*\\.)?dense\\.weihgt", "(.*\\.)?dense_4h_to_h\\.weight"}),
       "weihgt\" of parameter_with_row_parallelism_patterns matches no parameter"},
      {changed("parameter_to_average_patterns", {"(.*\\.)?gain", "(.*\\.)?dense\\.bias"}),
       "is matched by"},
      {changed("parameter_with_row_parallelism_patterns", {"(.*\\.)?dense\\.weight"}),
       "does not fit layers.0.dense_4h_to_h.bias"},
      {changed("original_vocab_size", 10), "nothing of the last rank's rows"},
      {changed("original_vocab_size", -3), "no number of rows"},
      {changed("parameter_with_row_parallelism_patterns", {"("}), "is not understood"},
      {changed("parameter_with_sub_params",
               Json::array({{{"patterns", Json::array()}, {"shape", {4}}, {"partition_dim", 0}}})),
       "without patterns"},
  };
  for (const auto& [rules, words] : cases) {
    const Json& given = rules;
    const Error error = error_of([&] { open_with_rules("mg_tp2_stage1_fp32_no_info", given); });
    EXPECT_THAT(error, Fails(ErrorCode::InvalidArgument, {"--merge-rules", words})) << given;
  }
}

/// Files as Meta writes them: a state dict of parts for each rank.
class CutFiles : public testing::Test {
 protected:
  void SetUp() override { write("consolidated.0{}.pth"); }
  void write(const char* file) {
    for (int rank = 0; rank < 2; ++rank) {
      const auto at = static_cast<float>(rank);
      const std::map<std::string, Made> tensors = {
          {"wq.weight", {DType::Float32, {1, 2}, {10 + at, 20 + at}}},
          {"wo.weight", {DType::Float32, {2, 1}, {30 + at, 40 + at}}},
          {"norm.weight", {DType::Float32, {2}, {7, 8}}}};
      Json object = Json::object();
      for (const auto& [name, made] : tensors) object[name] = {{"$tensor", name}};
      save_torch(folder_ / fmt::format(fmt::runtime(file), rank), object, tensors);
    }
  }
  std::vector<float> values(const Source& source, const char* fqn) {
    const auto found = source.catalog().find(fqn, state::kWeights);
    if (!found) return {};
    std::vector<float> out(source.catalog().tensors[*found].elements());
    source.read(*found, {0, out.size()}, std::as_writable_bytes(std::span(out)));
    return out;
  }
  std::unique_ptr<Source> open(const Json& rules) {
    return open_source(posix_storage(), folder_, {.merge_rules = rules});
  }

  const Json rules_ = {{"parameter_with_row_parallelism_patterns", {"wo\\."}},
                       {"tp_replicated_parameter_patterns", {"norm\\."}}};
  test::TempDir temp_;
  const Path folder_ = temp_.path();
};

TEST_F(CutFiles, ArePutTogetherByTheUsersRules) {
  const auto source = open(rules_);
  EXPECT_EQ(values(*source, "wq.weight"), (std::vector<float>{10, 20, 11, 21}));
  EXPECT_EQ(values(*source, "wo.weight"), (std::vector<float>{30, 31, 40, 41}));
  EXPECT_EQ(values(*source, "norm.weight"), (std::vector<float>{7, 8}));
  EXPECT_EQ(source->catalog().world_size, 2u);
  EXPECT_TRUE(source->losses().empty());
}

TEST_F(CutFiles, OfRanksThatSaveByThemselvesAreToo) {
  for (const char* name : {"consolidated.00.pth", "consolidated.01.pth"})
    fs::remove(folder_ / name);
  write("rank_{}.pt");
  EXPECT_THAT(error_of([&] { open(nullptr); }),
              Fails(ErrorCode::Unsupported, {"rank_0.pt", "2 parts", "--merge-rules"}));
  EXPECT_EQ(values(*open(rules_), "wq.weight"), (std::vector<float>{10, 20, 11, 21}));
  for (const char* name : {"rank_0.pt", "rank_1.pt"}) fs::remove(folder_ / name);
  write("model.rank{}.pt");  // without rules, copies of ranks
  const Error error = error_of([&] { open(nullptr); });
  EXPECT_THAT(error, Fails(ErrorCode::Unsupported, {"copies", "wo.weight"}));
  EXPECT_THAT(error.hint(), testing::HasSubstr("--merge-rules"));
  EXPECT_EQ(values(*open(rules_), "wq.weight"), (std::vector<float>{10, 20, 11, 21}));
}

TEST_F(CutFiles, WithoutRulesOrWithAPartMissingAreRefused) {
  EXPECT_THAT(error_of([&] { open(nullptr); }),
              Fails(ErrorCode::Unsupported, {"consolidated.00.pth", "parts"}));
  Json forgetful = rules_;
  forgetful.erase("tp_replicated_parameter_patterns");
  EXPECT_THAT(error_of([&] { open(forgetful); }),
              Fails(ErrorCode::InvalidArgument, {"norm.weight", "was not cut"}));
  fs::rename(folder_ / "consolidated.01.pth", folder_ / "consolidated.02.pth");
  EXPECT_THAT(error_of([&] { open(rules_); }),
              Fails(ErrorCode::Corrupt, {"consolidated", "number 1"}));
}

TEST(MergeRules, AreRefusedWhereNothingIsPutTogether) {
  SKIP_WITHOUT_FIXTURES();
  const Error error = error_of([] {
    open_source(posix_storage(), test::fixtures() / "deepspeed" / "stage2_w2" / "checkpoint",
                {.merge_rules = rules_of_the_user()});
  });
  EXPECT_THAT(error, Fails(ErrorCode::InvalidArgument, {"--merge-rules", "no tensor-parallel"}));
}

TEST(DeepSpeedTensorParallel, AMissingOrStrayFileIsNamed) {
  SKIP_WITHOUT_FIXTURES();
  struct Case {
    std::string fixture, removed;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {"autotp2_stage1_bf16",
       "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt",
       {"mp_rank_01", "optimizer files of rank 0 are missing"}},
      {"autotp2_stage1_bf16",
       "mp_rank_01_model_states.pt",
       {"mp_rank_01_model_states.pt", "missing"}},
      {"autotp2dp2_stage2_bf16",
       "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt",
       {"mp_rank_01 optimizer files of rank 1 are missing"}},
      {"autotp2dp2_stage3_fp32",
       "zero_pp_rank_1_mp_rank_01_model_states.pt",
       {"mp_rank_01 model files of rank 1 are missing"}},
      {"autotp2_stage0_fp32",
       "mp_rank_01_model_states.pt",
       {"mp_rank files of rank 1 are missing", "checkpoint_parallel_dimensions says 2 ranks"}},
      {"autotp2_stage0_fp32",
       "mp_rank_00_model_states.pt",
       {"mp_rank files of rank 0 are missing"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.fixture + " without " + c.removed);
    const CopiedRun copy(c.fixture);
    ASSERT_TRUE(fs::remove(copy.file(c.removed)));
    const Error error = error_of([&] { copy.open(); });
    EXPECT_EQ(error.code(), ErrorCode::Corrupt);
    for (const std::string& word : c.words) EXPECT_THAT(error.what(), testing::HasSubstr(word));
  }
  const CopiedRun stray("autotp2_stage0_fp32");
  fs::copy_file(stray.file("mp_rank_01_model_states.pt"), stray.file("mp_rank_02_model_states.pt"));
  EXPECT_THAT(error_of([&] { stray.open(); }),
              Fails(ErrorCode::Corrupt, {"mp_rank files of rank 2 are left from another save"}));
}

// ---- Small runs of two ranks, written here. Tensors have the values of their names.

/// A run of two tensor-parallel ranks, without optimizer unless `optimizer` is one.
class TwoRanks {
 public:
  void add(const std::string& name, const Made& first, const Made& second) {
    ranks_[0][name] = first;
    ranks_[1][name] = second;
  }
  std::unique_ptr<Source> open(const Json& info) const { return open_ranks({info, info}); }
  /// Opens a run whose ranks have different rules.
  std::unique_ptr<Source> open_ranks(const std::array<Json, 2>& infos) const {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const Path file = folder_.path() / ("mp_rank_0" + std::to_string(rank) + "_model_states.pt");
      fs::remove(file);
      Json module = Json::object();
      for (const auto& [name, made] : ranks_[rank]) module[name] = tensor(name);
      const Json model = {{"module", module},       {"buffer_names", buffers},
                          {"optimizer", optimizer}, {"global_steps", 1},
                          {"skipped_steps", 0},     {"dp_world_size", 1},
                          {"mp_world_size", 2},     {"universal_checkpoint_info", infos[rank]}};
      std::map<std::string, Made> tensors = ranks_[rank];
      tensors.insert(states[rank].begin(), states[rank].end());
      save_torch(file, model, tensors);
    }
    return open_source(posix_storage(), folder_.path());
  }

  Json buffers = Json::array();
  Json optimizer = nullptr;
  std::array<std::map<std::string, Made>, 2> states;  ///< tensors that `optimizer` names

 private:
  test::TempDir folder_;
  std::array<std::map<std::string, Made>, 2> ranks_;
};

Made floats(const Shape& shape, const std::vector<float>& values) {
  return {DType::Float32, shape, values};
}

std::vector<float> values_of(const Source& source, const std::string& fqn,
                             std::string_view state = state::kWeights) {
  const std::vector<std::byte> bytes = read_all(source, source.catalog().find(fqn, state).value());
  std::vector<float> values(bytes.size() / sizeof(float));
  std::ranges::copy(bytes, std::as_writable_bytes(std::span(values)).begin());
  return values;
}

TEST(DeepSpeedTensorParallel, RulesOfTwoRanksThatDifferAreRefused) {
  const char* rows = "parameter_with_row_parallelism_patterns";
  const char* replicated = "tp_replicated_parameter_patterns";
  TwoRanks run;
  run.add("wo.weight", floats({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}),
          floats({4, 2}, {9, 8, 7, 6, 5, 4, 3, 2}));
  run.add("wo.bias", floats({4}, {1, 2, 3, 4}), floats({4}, {1, 2, 3, 4}));
  const Json info = {{rows, {"wo\\.weight", "wi\\.weight"}}, {replicated, {"wo\\.bias"}}};
  const Json other_order = {{rows, {"wi\\.weight", "wo\\.weight"}}, {replicated, {"wo\\.bias"}}};
  EXPECT_EQ(run.open_ranks({info, other_order})->catalog().tensors.back().shape, (Shape{4, 4}));
  const Json without = {{replicated, {"wo\\.bias"}}};
  for (const auto& [first, second] : {std::pair(info, without), std::pair(without, info)})
    EXPECT_THAT(error_of([&] {
                  run.open_ranks({first, second});
                }),
                Fails(ErrorCode::Corrupt, {"mp_rank_00", "mp_rank_01", rows, "differs"}));
  EXPECT_THAT(error_of([&] { run.open(without); }),
              Fails(ErrorCode::Corrupt, {"wo.weight", "(8, 2)", "wo.bias of 4"}));
}

TEST(DeepSpeedTensorParallel, WhatIsNoListOfPatternsIsDamage) {
  for (const char* key :
       {"tp_replicated_parameter_patterns", "parameter_to_average_patterns",
        "parameter_with_2_sub_params_cat_dim_0", "parameter_with_row_parallelism_patterns",
        "vocabulary_parameter_patterns", "parameter_with_sub_params"}) {
    for (const Json& value : {Json(), Json("text"), Json(1)}) {
      TwoRanks run;
      run.add("wo.weight", floats({1, 2}, {1, 2}), floats({1, 2}, {3, 4}));
      const Json info = {{"autotp_unsupported_parameter_patterns", {"x"}}, {key, value}};
      EXPECT_THAT(error_of([&] { run.open(info); }), Fails(ErrorCode::Corrupt, {key, "is no list"}))
          << value;
    }
  }
}

/// DeepSpeed takes tuples for lists, and any kind of dict.
TEST(DeepSpeedTensorParallel, PatternsAreReadFromAnyKindOfList) {
  TwoRanks run;
  run.add("wo.weight", floats({1, 2}, {1, 2}), floats({1, 2}, {3, 4}));
  const char* const rows = "parameter_with_row_parallelism_patterns";
  const Json patterns = {{"$type", "tuple"}, {"items", {"wo\\.weight"}}};
  const auto source = run.open({{"$type", "collections.OrderedDict"},
                                {"pairs", Json::array({Json::array({rows, patterns})})}});
  EXPECT_EQ(source->catalog().client_state,
            (Json{{"universal_checkpoint_info", {{rows, {"wo\\.weight"}}}}}));
  EXPECT_EQ(values_of(*source, "wo.weight"), (std::vector<float>{1, 2, 3, 4}));
}

Json piece(const Shape& shape, const Shape& source_strides, std::uint64_t source,
           const Shape& dest_strides, std::uint64_t dest, const Shape& locations) {
  return {{"shape", shape},
          {"source", {source, source_strides}},
          {"dest", {dest, dest_strides}},
          {"locations", locations}};
}

/// Python's {0: a, 1: b}.
Json by_rank(const Json& a, const Json& b) {
  return {{"$type", "builtins.dict"}, {"pairs", {Json::array({0, a}), Json::array({1, b})}}};
}

/// The map of "w", of (2, 4), whose columns 0 to 2 and 3 are on ranks 0 and 1.
struct Columns {
  Json logical = {2, 4}, shape0 = {2, 3}, shape1 = {2, 1};
  Json piece0 = piece({2, 3}, {4, 1}, 0, {3, 1}, 0, {0});
  Json piece1 = piece({2, 1}, {4, 1}, 3, {1, 1}, 0, {1});
  Json version = 1;

  Json info() const {
    return {{"affine_map",
             {{"version", version},
              {"params",
               {{"^w$",
                 {{"logical_shape", logical},
                  {"ranks",
                   by_rank({{"shard_shape", shape0}, {"pieces", Json::array({piece0})}},
                           {{"shard_shape", shape1}, {"pieces", Json::array({piece1})}})}}}}}}}};
  }
  std::unique_ptr<Source> open() const {
    TwoRanks run;
    run.add("w", floats({2, 3}, {0, 1, 2, 4, 5, 6}), floats({2, 1}, {3, 7}));
    return run.open(info());
  }
};

TEST(DeepSpeedAffineMap, PutsColumnsTogether) {
  EXPECT_EQ(values_of(*Columns().open(), "w"), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(DeepSpeedAffineMap, OfTwoRanksMustBeEqual) {
  const Columns map;
  Columns other;
  other.piece0["source"] = {1, {4, 1}};
  TwoRanks run;
  run.add("w", floats({2, 3}, {0, 1, 2, 4, 5, 6}), floats({2, 1}, {3, 7}));
  EXPECT_THAT(error_of([&] {
                run.open_ranks({map.info(), other.info()});
              }),
              Fails(ErrorCode::Corrupt, {"mp_rank_00", "mp_rank_01", "affine_map", "differs"}));
}

TEST(DeepSpeedAffineMap, MustSayWhatTheListsOfPatternsSay) {
  TwoRanks run;
  run.add("w", floats({2, 3}, {0, 1, 2, 4, 5, 6}), floats({2, 1}, {3, 7}));
  Json info = Columns().info();
  info["parameter_with_row_parallelism_patterns"] = Json::array({"^w$"});
  EXPECT_EQ(values_of(*run.open(info), "w"), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));

  Columns turned;  // the last column first
  turned.piece0["source"] = {1, {4, 1}};
  turned.piece1["source"] = {0, {4, 1}};
  Json forged = turned.info();
  forged["parameter_with_row_parallelism_patterns"] = Json::array({"^w$"});
  EXPECT_THAT(error_of([&] { run.open(forged); }),
              Fails(ErrorCode::Corrupt, {"\"w\"", "affine_map", "lists of patterns"}));
}

TEST(DeepSpeedAffineMap, IsRefusedWhenItContradictsItselfOrTheFiles) {
  struct Case {
    std::string what;
    std::function<void(Columns&)> change;
    ErrorCode code;
    std::vector<std::string> words;
  };
  const ErrorCode corrupt = ErrorCode::Corrupt, unsupported = ErrorCode::Unsupported;
  const std::uint64_t huge = std::uint64_t{1} << 62;
  const std::vector<Case> cases = {
      {"newer", [](Columns& c) { c.version = 2; }, unsupported, {"version 2"}},
      {"hole",
       [](Columns& c) {
         c.logical = {2, 5};
         c.piece0["source"] = {0, {5, 1}};
         c.piece1["source"] = {3, {5, 1}};
       },
       corrupt,
       {"\"w\"", "no chunk"}},
      {"overlap",
       [](Columns& c) {
         c.piece1["source"] = {2, {4, 1}};
       },
       corrupt,
       {"several chunks"}},
      {"outside of the whole",
       [](Columns& c) {
         c.piece1["source"] = {4, {4, 1}};
       },
       corrupt,
       {"reaches out"}},
      {"far outside of the whole",
       [=](Columns& c) {
         c.piece1["source"] = {huge, {4, 1}};
       },
       corrupt,
       {"reaches out"}},
      {"outside of the shard",
       [](Columns& c) {
         c.piece1["dest"] = {1, {1, 1}};
       },
       corrupt,
       {"rank 1", "reaches out"}},
      {"other strides",
       [](Columns& c) {
         c.piece0["source"] = {0, {1, 2}};
       },
       unsupported,
       {"is no box"}},
      {"other dimensions", [](Columns& c) { c.piece0["shape"] = {6}; }, unsupported, {"is no box"}},
      {"negative offset",
       [](Columns& c) {
         c.piece0["source"] = {-1, {4, 1}};
       },
       corrupt,
       {}},
      {"scaled", [](Columns& c) { c.piece0["scale"] = 0.5; }, unsupported, {"scaled by 0.5"}},
      {"other shard",
       [](Columns& c) {
         c.shape0 = {3, 2};
       },
       corrupt,
       {"rank 0", "shape (3, 2)"}},
      {"wrong locations",
       [](Columns& c) {
         c.piece0["locations"] = {0, 1};
       },
       corrupt,
       {"said to be on the ranks 0, 1"}},
      {"shape that overflows",
       [=](Columns& c) {
         c.logical = {huge, huge};
       },
       corrupt,
       {}},
      {"hole in a shard",
       [](Columns& c) {
         c.logical = {2, 3};
         c.piece0 = piece({2, 2}, {3, 1}, 0, {3, 1}, 0, {0});
         c.piece1["source"] = {2, {3, 1}};
       },
       corrupt,
       {"rank 0", "no chunk"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Columns columns;
    c.change(columns);
    const Error error = error_of([&] { columns.open(); });
    EXPECT_EQ(error.code(), c.code) << error.what();
    for (const std::string& word : c.words) EXPECT_THAT(error.what(), testing::HasSubstr(word));
  }
}

TEST(DeepSpeedTensorParallel, PatternsTellHowTensorsWereCut) {
  TwoRanks run;
  run.add("same", floats({2}, {1, 2}), floats({2}, {1, 2}));
  run.add("mean", floats({2}, {1, 2}), floats({2}, {2, 5}));
  run.add("rows", floats({2, 1}, {1, 3}), floats({2, 2}, {2, 2.5, 4, 4.5}));
  run.add("plain", floats({1, 2}, {1, 2}), floats({2, 2}, {3, 4, 5, 6}));
  run.add("two", floats({2}, {1, 5}), floats({4}, {2, 3, 6, 7}));
  run.add("sub", floats({3}, {1, 2, 5}), floats({2}, {3, 6}));
  run.add("table", floats({2, 1}, {1, 2}), floats({2, 1}, {3, 0}));
  const Json info = {{"universal_checkpoint_version", 0.4},
                     {"tp_replicated_parameter_patterns", {"same"}},
                     {"parameter_to_average_patterns", {"mean"}},
                     {"parameter_with_row_parallelism_patterns", {"rows"}},
                     {"parameter_with_2_sub_params_cat_dim_0", {"two"}},
                     {"parameter_with_sub_params",
                      {{{"patterns", {"^sub$"}}, {"shape", {{3, 2}}}, {"partition_dim", 0}}}},
                     {"sub_param_shard_widths", {{"^sub$", {{2, 1}, {1, 1}}}}},
                     {"vocabulary_parameter_patterns", {"table"}},
                     {"original_vocab_size", 3}};
  const auto source = run.open(info);
  EXPECT_EQ(values_of(*source, "same"), (std::vector<float>{1, 2}));
  EXPECT_EQ(values_of(*source, "mean"), (std::vector<float>{1.5, 3.5}));
  EXPECT_EQ(values_of(*source, "rows"), (std::vector<float>{1, 2, 2.5, 3, 4, 4.5}));
  EXPECT_EQ(values_of(*source, "plain"), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(values_of(*source, "two"), (std::vector<float>{1, 2, 3, 5, 6, 7}));
  EXPECT_EQ(values_of(*source, "sub"), (std::vector<float>{1, 2, 3, 5, 6}));
  EXPECT_EQ(values_of(*source, "table"), (std::vector<float>{1, 2, 3}));
}

TEST(DeepSpeedTensorParallel, TheMeanOfPartsThatAreUnlikeIsDoubted) {
  std::vector<float> one(16), drifted(16), other(16);
  for (std::size_t i = 0; i < 16; ++i) {
    one[i] = i % 2 == 0 ? 1.0F : -1.0F;
    drifted[i] = one[i] * 1.1F;
    other[i] = i % 4 < 2 ? 1.0F : -1.0F;
  }
  for (const auto& [second, is_doubted] : {std::pair{drifted, false}, {other, true}}) {
    TwoRanks run;
    run.add("mean", floats({16}, one), floats({16}, second));
    const auto source = run.open({{"parameter_to_average_patterns", {"mean"}}});
    const auto doubt = testing::Contains(testing::HasSubstr("\"mean\" is averaged, and"));
    if (is_doubted)
      EXPECT_THAT(source->remarks(), doubt);
    else
      EXPECT_THAT(source->remarks(), Not(doubt));
  }
}

TEST(DeepSpeedTensorParallel, AVectorOfTheVocabularyHasElements) {
  TwoRanks run;
  run.add("table", floats({2, 1}, {1, 2}), floats({2, 1}, {3, 0}));
  run.add("table_bias", floats({2}, {1, 2}), floats({2}, {3, 0}));
  const auto source =
      run.open({{"vocabulary_parameter_patterns", {"table", "head"}}, {"original_vocab_size", 3}});
  EXPECT_EQ(values_of(*source, "table_bias"), (std::vector<float>{1, 2, 3}));
  EXPECT_THAT(source->remarks(),
              testing::IsSupersetOf(
                  {testing::HasSubstr("table: 1 row of padding"),
                   testing::HasSubstr("table_bias: 1 element of padding"),
                   testing::HasSubstr("pattern \"head\" of vocabulary_parameter_patterns matches "
                                      "no parameter")}));
}

TEST(DeepSpeedTensorParallel, APatternOfTheVocabularyThatHitsAnotherTensorIsRefused) {
  const Json info = {{"tp_replicated_parameter_patterns", {"norm"}},
                     {"vocabulary_parameter_patterns", {"table", "norm"}},
                     {"original_vocab_size", 3}};
  for (const auto& [size, words] :
       {std::pair{5, "no matrix of the vocabulary has as many rows"}, {2, "original_vocab_size"}}) {
    TwoRanks run;
    const std::vector<float> values(static_cast<std::size_t>(size), 1);
    const Made norm = floats({static_cast<std::uint64_t>(size)}, values);
    run.add("norm", norm, norm);
    run.add("table", floats({2, 1}, {1, 2}), floats({2, 1}, {3, 0}));
    EXPECT_THAT(error_of([&] { run.open(info); }),
                Fails(ErrorCode::Corrupt, {"norm", "elements", words}));
  }
}

/// Rows that are long, and rows that are short, in more than one step.
TEST(DeepSpeedTensorParallel, LargeTensorsArePutTogetherInSteps) {
  const auto columns = [](std::uint64_t rows, std::uint64_t width, std::uint64_t begin,
                          std::uint64_t end) {
    std::vector<float> values;
    for (std::uint64_t row = 0; row < rows; ++row) {
      for (std::uint64_t column = begin; column < end; ++column)
        values.push_back(static_cast<float>(row * width + column));
    }
    return floats({rows, end - begin}, values);
  };
  TwoRanks run;
  run.add("long", columns(40, 40000, 0, 18000), columns(40, 40000, 18000, 40000));
  run.add("short", columns(600000, 3, 0, 1), columns(600000, 3, 1, 3));
  const auto source = run.open({{"parameter_with_row_parallelism_patterns", {"long", "short"}}});
  for (const std::string name : {"long", "short"}) {
    const std::vector<float> values = values_of(*source, name);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      wrong += values[i] == static_cast<float>(i) ? 0u : 1u;
    EXPECT_EQ(wrong, 0u) << name;
  }
}

TEST(DeepSpeedTensorParallel, PatternsThatDoNotFitAreRefused) {
  struct Case {
    std::string what;
    Made first, second;
    Json info;
    ErrorCode code;
    std::string words;
  };
  const ErrorCode corrupt = ErrorCode::Corrupt, unsupported = ErrorCode::Unsupported;
  const Made two = floats({2}, {1, 2}), three = floats({3}, {1, 2, 3});
  const Json sub = {{{"patterns", {"w"}}, {"shape", {{3, 2}}}, {"partition_dim", 0}}};
  const std::vector<Case> cases = {
      {"replicated, other shapes",
       two,
       three,
       {{"tp_replicated_parameter_patterns", {"w"}}},
       corrupt,
       "rank 1"},
      {"mean of other shapes",
       two,
       three,
       {{"parameter_to_average_patterns", {"w"}}},
       corrupt,
       "differ in shape"},
      {"odd halves",
       two,
       three,
       {{"parameter_with_2_sub_params_cat_dim_0", {"w"}}},
       corrupt,
       "3 rows"},
      {"columns of a vector",
       two,
       three,
       {{"parameter_with_row_parallelism_patterns", {"w"}}},
       corrupt,
       "dimension 1"},
      {"two patterns",
       two,
       two,
       {{"tp_replicated_parameter_patterns", {"w", "^w"}}},
       corrupt,
       "two patterns"},
      {"unsupported",
       two,
       two,
       {{"autotp_unsupported_parameter_patterns", {{"w", "mixed up"}}}},
       unsupported,
       "mixed up"},
      {"no widths",
       two,
       three,
       {{"universal_checkpoint_version", 0.4}, {"parameter_with_sub_params", sub}},
       corrupt,
       "sub_param_shard_widths"},
      {"older, uneven",
       two,
       three,
       {{"universal_checkpoint_version", 0.3}, {"parameter_with_sub_params", sub}},
       unsupported,
       "do not say"},
      {"widths of three ranks",
       two,
       three,
       {{"parameter_with_sub_params", sub},
        {"sub_param_shard_widths", {{"w", {{1, 1, 1}, {1, 1, 0}}}}}},
       corrupt,
       "3"},
      {"widths of another tensor",
       two,
       three,
       {{"parameter_with_sub_params", sub}, {"sub_param_shard_widths", {{"w", {{2, 1}, {2, 1}}}}}},
       corrupt,
       "reaches out"},
      {"empty", two, two, Json::object(), unsupported, "has no rules"},
      {"look-ahead",
       two,
       two,
       {{"tp_replicated_parameter_patterns", {"(?=w)"}}},
       unsupported,
       "not understood"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    TwoRanks run;
    run.add("w", c.first, c.second);
    EXPECT_THAT(error_of([&] { run.open(c.info); }), Fails(c.code, c.words));
  }
}

TEST(DeepSpeedTensorParallel, CopiesThatDifferAreNamedWhenTheyAreRead) {
  TwoRanks run;
  run.add("w", floats({2}, {1, 2}), floats({2}, {1, 2.5}));
  const Json info = {{"tp_replicated_parameter_patterns", {"w"}}};
  const auto source = run.open(info);
  EXPECT_THAT(error_of([&] { read_all_tensors(*source); }),
              Fails(ErrorCode::Corrupt, {"w [weights]", "ranks 0 and 1", "different values"}));
  EXPECT_THAT(error_of([&] { source->check({}); }), Fails(ErrorCode::Corrupt, "different values"));
  EXPECT_TRUE(source->ignore_checksums());
  EXPECT_EQ(values_of(*source, "w"), (std::vector<float>{1, 2}));
}

TEST(DeepSpeedTensorParallel, ABufferThatDiffersIsLeftOut) {
  TwoRanks run;
  run.buffers = {"same", "other"};
  run.add("w", floats({1}, {1}), floats({1}, {2}));
  run.add("same", floats({2}, {1, 2}), floats({2}, {1, 2}));
  run.add("other", floats({2}, {1, 2}), floats({2}, {1, 3}));
  const auto source = run.open({{"parameter_with_row_parallelism_patterns", {"x"}}});
  EXPECT_EQ(values_of(*source, "w"), (std::vector<float>{1, 2}));
  EXPECT_EQ(values_of(*source, "same", state::kBuffer), (std::vector<float>{1, 2}));
  EXPECT_FALSE(source->catalog().find("other", state::kBuffer));
  EXPECT_EQ(notes_of(*source),
            (std::vector<std::string>{
                "left out: buffer \"other\": it differs between the tensor-parallel ranks"}));
}

TEST(DeepSpeedTensorParallel, AFileSavedAgainUnderAnotherRanksNameIsSaid) {
  SKIP_WITHOUT_FIXTURES();
  const std::map<std::string, std::string> files = {
      {"mg_tp2dp2_stage3_bf16", "bf16_zero_pp_rank_1_mp_rank_0{}_optim_states.pt"},
      {"autotp2_stage0_fp32", "mp_rank_0{}_model_states.pt"}};
  for (const auto& [name, pattern] : files) {
    SCOPED_TRACE(name);
    const CopiedRun run(name);
    const std::string file = fmt::format(fmt::runtime(pattern), 0);
    const std::string other = fmt::format(fmt::runtime(pattern), 1);
    fs::copy_file(run.file(file), run.file(other), fs::copy_options::overwrite_existing);
    run.rename_archive(other, file);
    EXPECT_THAT(notes_of(*run.open()),
                testing::Contains(testing::AllOf(
                    testing::HasSubstr("on ranks 0 and 1, have the same values in different parts"),
                    testing::HasSubstr("may be another's under a wrong name"))));
  }
}

/// Adam's states of the parameters "a" and "b", each with the values of its name's rank.
void add_moments(TwoRanks& run, float of_first, float of_second) {
  Json pairs = Json::array();
  for (const auto& [number, shape] : std::map<int, Shape>{{0, {2, 2}}, {1, {3, 2}}}) {
    Json states = {{"step", 1}};
    for (const std::string moment : {"exp_avg", "exp_avg_sq"}) {
      const std::string name = moment + std::to_string(number);
      states[moment] = tensor(name);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        std::vector<float> values(element_count(shape), rank == 0 ? of_first : of_second);
        for (std::size_t i = 0; i < values.size() && values[i] != 0; ++i)
          values[i] += static_cast<float>(i);
        run.states[rank][name] = floats(shape, values);
      }
    }
    pairs.push_back(Json::array({number, states}));
  }
  run.optimizer = {{"state", {{"$type", "builtins.dict"}, {"pairs", pairs}}},
                   {"param_groups", Json::array({{{"params", {0, 1}}, {"lr", 0.1}}})}};
}

/// A rank's moments under another's name show by nothing but their values: the weights differ.
TEST(DeepSpeedTensorParallel, MomentsThatAreAnotherRanksAreSaid) {
  const auto notes_with = [](float of_first, float of_second) {
    TwoRanks run;
    run.add("a", floats({2, 2}, {1, 2, 3, 4}), floats({2, 2}, {5, 6, 7, 8}));
    run.add("b", floats({3, 2}, {1, 2, 3, 4, 5, 6}), floats({3, 2}, {7, 8, 9, 10, 11, 12}));
    add_moments(run, of_first, of_second);
    const auto source = run.open({{"parameter_with_row_parallelism_patterns", {"a"}}});
    EXPECT_TRUE(source->catalog().find("a", state::kExpAvg).has_value());
    return notes_of(*source);
  };
  const auto told = testing::Contains(testing::AllOf(
      testing::HasSubstr("4 moments of the optimizer, first a [exp_avg]"),
      testing::HasSubstr("on ranks 0 and 1"), testing::HasSubstr("moments may be another's")));
  EXPECT_THAT(notes_with(1, 1), told);
  EXPECT_THAT(notes_with(1, 2), testing::IsEmpty());
  EXPECT_THAT(notes_with(0, 0), testing::IsEmpty());
}

TEST(DeepSpeedTensorParallel, TwoModelFilesOfOneRankAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  const CopiedRun run("autotp2_stage0_fp32");
  fs::copy_file(run.file("mp_rank_01_model_states.pt"), run.file("mp_rank_001_model_states.pt"));
  EXPECT_THAT(error_of([&] { run.open(); }),
              Fails(ErrorCode::Corrupt, {"mp_rank_01_model_states.pt",
                                         "mp_rank_001_model_states.pt", "mixes two saves"}));
}

}  // namespace
}  // namespace unishard::converters
