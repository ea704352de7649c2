// What is refused, and what is told, of runs of Megatron-LM whose files contradict each other, or
// lack something: those of small GPTs, which are written here.
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "read_source.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"
#include "torch_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace unishard::converters {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::Fails;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A GPT of hidden size 4, with two heads, six columns of linear_fc2 and eight rows of vocabulary.
struct Gpt {
  std::uint64_t tensor_ranks = 1, stages = 1, layers = 2;
  bool is_gated = false, is_tied = true, has_optimizer = false;
  Json args = Json::object();  ///< count before those that describe the tensors
  std::function<bool(const std::string& name)> is_lost = {};
  int iteration = 3;
  bool has_random_state = false, has_schedule = false;
  /// Names of the norms in a layer and of the final one, in the older form; empty: the newer form.
  std::vector<std::string> older_norms = {};
  /// Of all parameters, in bfloat16 with fp32 masters; changed before it is saved.
  std::function<void(Json& optimizer, std::uint64_t stage)> optimizer = {};
  float master = 0;  ///< elements of the masters of norms; the weights are 0
  DType master_type = DType::Float32;
  float last_of_large_masters = 0;
  std::map<std::string, Shape> shapes = {};  ///< in a stage; count before the usual ones
};

constexpr std::uint64_t kHidden = 4, kColumns = 6, kVocabulary = 8;

/// Shapes of what a rank of a stage has, by name.
std::map<std::string, Shape> shapes_of(const Gpt& gpt, std::uint64_t stage) {
  const std::uint64_t ranks = gpt.tensor_ranks, gates = gpt.is_gated ? 2 : 1;
  const bool is_last = stage + 1 == gpt.stages;
  std::map<std::string, Shape> shapes;
  if (stage == 0) {
    shapes["embedding.word_embeddings.weight"] = {kVocabulary / ranks, kHidden};
    shapes["embedding.position_embeddings.weight"] = {5, kHidden};
  }
  for (std::uint64_t layer = 0; layer < gpt.layers / gpt.stages; ++layer) {
    const std::string before = fmt::format("decoder.layers.{}.", layer);
    shapes[before + "input_layernorm.weight"] = {kHidden};
    shapes[before + "self_attention.linear_qkv.weight"] = {3 * kHidden / ranks, kHidden};
    shapes[before + "self_attention.linear_proj.weight"] = {kHidden, kHidden / ranks};
    shapes[before + "pre_mlp_layernorm.weight"] = {kHidden};
    shapes[before + "mlp.linear_fc1.weight"] = {gates * kColumns / ranks, kHidden};
    shapes[before + "mlp.linear_fc2.weight"] = {kHidden, kColumns / ranks};
  }
  if (is_last) shapes["decoder.final_layernorm.weight"] = {kHidden};
  if (is_last && (!gpt.is_tied || gpt.stages > 1))
    shapes["output_layer.weight"] = {kVocabulary / ranks, kHidden};
  for (const auto& [name, shape] : gpt.shapes)
    if (name.ends_with("bias") || shapes.contains(name)) shapes[name] = shape;
  return shapes;
}

Json args_of(const Gpt& gpt) {
  Json args = {{"tensor_model_parallel_size", gpt.tensor_ranks},
               {"pipeline_model_parallel_size", gpt.stages},
               {"num_layers", gpt.layers},
               {"hidden_size", kHidden},
               {"num_attention_heads", 2},
               {"position_embedding_type", "learned_absolute"},
               {"swiglu", gpt.is_gated},
               {"untie_embeddings_and_output_weights", !gpt.is_tied}};
  args.update(gpt.args);
  return args;
}

/// The name that Megatron-LM gave a tensor before Megatron-Core.
std::string older_name(std::string name, const std::vector<std::string>& norms) {
  const std::vector<std::pair<std::string, std::string>> words = {
      {"decoder.", "language_model.encoder."},
      {"embedding.word", "language_model.embedding.word"},
      {"embedding.position", "language_model.embedding.position"},
      {"output_layer.", "word_embeddings_for_head."},
      {"linear_qkv", "query_key_value"},
      {"linear_proj", "dense"},
      {"linear_fc1", "dense_h_to_4h"},
      {"linear_fc2", "dense_4h_to_h"},
      {"input_layernorm", norms[0]},
      {"pre_mlp_layernorm", norms[1]},
      {"final_layernorm", norms[2]}};
  for (const auto& [now, older] : words) {
    if (const std::size_t at = name.find(now); at != name.npos) name.replace(at, now.size(), older);
  }
  return name;
}

/// Puts a tensor below dicts of dicts: "language_model.encoder.x" is x of encoder of
/// language_model.
void nest(Json& model, const std::string& name, const std::string& tensor_name) {
  Json* place = &model;
  std::string rest = name;
  for (const std::string dict :
       {"language_model.", "encoder.", "embedding.", "word_embeddings_for_head.",
        "word_embeddings.", "position_embeddings."}) {
    if (!rest.starts_with(dict)) continue;
    place = &(*place)[dict.substr(0, dict.size() - 1)];
    rest.erase(0, dict.size());
  }
  (*place)[rest] = tensor(tensor_name);
}

/// Adam's numbered states of the first parameter.
Json optimizer_of(const Shape& shape, std::map<std::string, Made>& tensors) {
  tensors["exp_avg"] = {DType::Float32, shape, std::vector<float>(element_count(shape))};
  const Json state = {{"step", 100}, {"exp_avg", tensor("exp_avg")}};
  return {{"optimizer",
           {{"state", with_number_keys(state)},
            {"param_groups", Json::array({{{"lr", 0.1}, {"params", {0}}}})}}}};
}

/// What Float16OptimizerWithFloat16Params saves: Adam's states of matrices, then of norms.
Json whole_optimizer(const Gpt& gpt, std::map<std::string, Made>& tensors) {
  Json pairs = Json::array(), groups = Json::array(), masters = Json::array();
  const std::map<std::string, Made> parameters = tensors;
  for (const bool is_norm : {false, true}) {
    Json group = {{"weight_decay", is_norm ? 0.0 : 0.1}, {"params", Json::array()}};
    Json masters_of_group = Json::array();
    for (const auto& [name, parameter] : parameters) {
      if ((parameter.shape.size() == 1) != is_norm) continue;
      const std::size_t count = element_count(parameter.shape);
      Json state = {{"step", 3}};
      for (const char* moment : {"exp_avg", "exp_avg_sq"}) {
        tensors[name + moment] = {DType::Float32, parameter.shape, std::vector<float>(count)};
        state[moment] = tensor(name + moment);
      }
      group["params"].push_back(pairs.size());
      pairs.push_back({pairs.size(), std::move(state)});
      const float value = is_norm ? gpt.master : 0;
      std::vector<float> values(count, value);
      if (count > 64) values.back() = gpt.last_of_large_masters;
      tensors[name + "master"] = {gpt.master_type, parameter.shape, std::move(values)};
      tensors[name].dtype = DType::BFloat16;
      masters_of_group.push_back(tensor(name + "master"));
    }
    groups.push_back(std::move(group));
    masters.push_back(std::move(masters_of_group));
  }
  const Json states = {{"$type", "builtins.dict"}, {"pairs", std::move(pairs)}};
  return {{"optimizer", {{"state", states}, {"param_groups", std::move(groups)}}},
          {"fp32_from_fp16_params", std::move(masters)}};
}

/// Elements of linear_fc1 are the number of the tensor-parallel rank.
void save_rank(const Path& folder, const Gpt& gpt, std::uint64_t stage, std::uint64_t rank) {
  Json model = Json::object();
  std::map<std::string, Made> tensors;
  for (const auto& [name, shape] : shapes_of(gpt, stage)) {
    if (gpt.is_lost && gpt.is_lost(name)) continue;
    if (gpt.older_norms.empty())
      model[name] = tensor(name);
    else
      nest(model, older_name(name, gpt.older_norms), name);
    const float value = name.ends_with("linear_fc1.weight") ? static_cast<float>(rank) : 0.0F;
    tensors[name] = {DType::Float32, shape, std::vector<float>(element_count(shape), value)};
  }
  Json root = {{"args", args_of(gpt)}, {"checkpoint_version", 3.0}, {"iteration", gpt.iteration}};
  if (gpt.has_random_state) {
    tensors["random"] = {DType::UInt8, {3}, {1, 2, 3}};
    root["rng_state"] = Json::array({{{"torch_rng_state", tensor("random")}}});
  }
  if (gpt.has_schedule) root["opt_param_scheduler"] = {{"num_steps", 3}};
  if (gpt.has_optimizer) root["optimizer"] = optimizer_of(tensors.begin()->second.shape, tensors);
  if (gpt.optimizer) {
    root["optimizer"] = whole_optimizer(gpt, tensors);
    gpt.optimizer(root["optimizer"], stage);
  }
  root["model"] = std::move(model);
  fs::create_directories(folder);
  save_torch(folder / "model_optim_rng.pt", root, tensors, "model_optim_rng");
}

class MegatronRuns : public testing::Test {
 protected:
  /// Saves the run in the place of an earlier one.
  std::unique_ptr<Source> open(const Gpt& gpt) const {
    const Path run = temp_.path() / "iter_0000003";
    fs::remove_all(run);
    for (std::uint64_t stage = 0; stage < gpt.stages; ++stage) {
      for (std::uint64_t rank = 0; rank < gpt.tensor_ranks; ++rank)
        save_rank(run / fmt::format("mp_rank_{:02}_{:03}", rank, stage), gpt, stage, rank);
    }
    return open_source(posix_storage(), run);
  }
  const test::TempDir temp_;
};

TEST_F(MegatronRuns, TheOptimizerOfOneTensorParallelRankIsALoss) {
  for (const std::uint64_t stages : {1u, 2u}) {
    EXPECT_THAT(open({.stages = stages})->losses(), IsEmpty());
    const auto source = open({.stages = stages, .has_optimizer = true});
    const Losses losses = source->losses();
    ASSERT_EQ(losses.size(), 1u);
    EXPECT_EQ(losses.front().role, Role::Optimizer);
    EXPECT_THAT(losses.front().why, HasSubstr("not put together"));
    EXPECT_THAT(notes_of(*source), Not(Contains(HasSubstr("--assume-model-order"))));
  }
}

TEST_F(MegatronRuns, StatesThatFitNoParameterAreALossAndNoDamage) {
  const auto as_it_is = [](Json& /*optimizer*/, std::uint64_t /*stage*/) {};
  const auto source = open({.stages = 2, .optimizer = as_it_is});
  EXPECT_THAT(source->losses(), IsEmpty());
  EXPECT_TRUE(source->catalog().find("decoder.layers.1.input_layernorm.weight", "exp_avg_sq"));
  const auto why = [&](Gpt gpt) {
    gpt.stages = 2;
    const auto read = open(gpt);
    EXPECT_TRUE(read->catalog().find("decoder.final_layernorm.weight", state::kWeights));
    EXPECT_FALSE(read->catalog().find("decoder.final_layernorm.weight", state::kFp32));
    return read->losses().empty() ? std::string() : read->losses().front().why;
  };
  EXPECT_THAT(why({.optimizer = as_it_is, .master = 1}), HasSubstr("is another one's"));
  const std::map<std::string, Shape> large = {{"embedding.position_embeddings.weight", {33, 4}}};
  EXPECT_THAT(why({.optimizer = as_it_is, .last_of_large_masters = 1, .shapes = large}),
              HasSubstr("is another one's"));
  const auto changed = [](const std::function<void(Json&)>& change) {
    return [change](Json& optimizer, std::uint64_t stage) {
      if (stage == 1) change(optimizer);
    };
  };
  const Json::json_pointer state("/optimizer/state/pairs/1/1"), groups("/optimizer/param_groups");
  const std::pair<std::string, std::function<void(Json&)>> cases[] = {
      {"lack exp_avg_sq", [&](Json& out) { out[state].erase("exp_avg_sq"); }},
      {"other settings", [&](Json& out) { out[groups][0]["weight_decay"] = 0.2; }},
      {"has no fp32 master", [](Json& out) { out["fp32_from_fp16_params"][1].erase(0); }},
      {"has done 9 steps",
       [](Json& out) {
         for (Json& pair : out["optimizer"]["state"]["pairs"]) pair[1]["step"] = 9;
       }},
      {"no states beside them", [](Json& out) { out["optimizer"]["state"] = Json::object(); }},
      {"has no optimizer", [](Json& out) { out = 5; }},
  };
  for (const auto& [words, change] : cases)
    EXPECT_THAT(why({.optimizer = changed(change)}), HasSubstr(words));
}

/// Adam's settings, which tell that its two moments belong together.
Json adam_of(Json groups) {
  for (Json& group : groups)
    group.update({{"lr", 0.1}, {"betas", {0.9, 0.999}}, {"eps", 1e-8}, {"amsgrad", false}});
  return groups;
}

TEST_F(MegatronRuns, DoubtsAboutStatesAreThoseOfOtherFormats) {
  const Json::json_pointer groups("/optimizer/param_groups");
  const auto remarks = [&](const std::function<void(Json & pairs, std::uint64_t stage)>& change) {
    const auto source = open({.stages = 2, .optimizer = [&](Json& out, std::uint64_t stage) {
                                out[groups] = adam_of(out[groups]);
                                change(out["optimizer"]["state"]["pairs"], stage);
                              }});
    EXPECT_THAT(source->losses(), IsEmpty());
    return source->remarks();
  };
  const auto of_all = [](const std::function<void(Json & state)>& change) {
    return [change](Json& pairs, std::uint64_t /*stage*/) {
      for (Json& pair : pairs) change(pair[1]);
    };
  };
  EXPECT_THAT(remarks([](Json&, std::uint64_t) {}), IsEmpty());
  for (const char* moment : {"exp_avg", "exp_avg_sq"})
    EXPECT_THAT(remarks(of_all([&](Json& state) { state.erase(moment); })),
                ElementsAre(HasSubstr("is gone for all parameters")));
  EXPECT_THAT(remarks(of_all([](Json& state) { state.erase("step"); })),
              ElementsAre(HasSubstr("moments have no steps")));
  EXPECT_THAT(remarks(of_all([](Json& state) { state["step"] = 4; })),
              ElementsAre(HasSubstr("counts 4 steps, and the files say iteration 3")));
  // The numbers of the first stage's parameters tell nothing of those of the second.
  EXPECT_THAT(remarks([](Json& pairs, std::uint64_t stage) {
                if (stage == 1) pairs[0][1].erase("step");
              }),
              ElementsAre(AllOf(HasSubstr("have no step"), HasSubstr("decoder.layers.1."))));
}

TEST_F(MegatronRuns, StepsThatTensorParallelRanksHaveUnlikeAreALoss) {
  int saved = 0;
  const auto lose_one = [&](Json& optimizer, std::uint64_t /*stage*/) {
    if (saved++ == 0) optimizer["optimizer"]["state"]["pairs"][1][1].erase("step");
  };
  const Losses losses = open({.tensor_ranks = 2, .optimizer = lose_one})->losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses.front().role, Role::Optimizer);
  EXPECT_THAT(losses.front().why, HasSubstr("has other steps"));
}

TEST_F(MegatronRuns, AnOptimizerOfWhichNothingIsReadIsNamed) {
  const auto read = [&](const std::function<void(Json & optimizer)>& change) {
    return open({.optimizer = [&](Json& out, std::uint64_t /*stage*/) { change(out); }});
  };
  const std::pair<std::string, std::function<void(Json&)>> cases[] = {
      {"no parameter groups", [](Json& out) { out["optimizer"].erase("param_groups"); }},
      {"no parameter groups", [](Json& out) { out = Json::object(); }},
      {"are not read",
       [](Json& out) {
         out = Json::array({out, out});
       }},
      {"no states of any parameter", [](Json& out) {
         out = {{"state", {}}, {"param_groups", out["optimizer"]["param_groups"]}};
       }}};

  for (const auto& [words, change] : cases) {
    const auto source = read(change);
    ASSERT_EQ(source->losses().size(), 1u) << words;
    EXPECT_EQ(source->losses().front().role, Role::Optimizer);
    EXPECT_THAT(source->notes(), Contains(AllOf(HasSubstr("fp32 masters among them, are not read"),
                                                HasSubstr(words))));
  }
  const auto as_it_is = [](Json& /*optimizer*/, std::uint64_t /*stage*/) {};
  const Losses losses = open({.optimizer = as_it_is, .master_type = DType::BFloat16})->losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_THAT(losses.front().why, HasSubstr("has 16 bits too"));
}

TEST_F(MegatronRuns, AScheduleWithoutItsOptimizerIsDoubted) {
  EXPECT_THAT(open({.has_schedule = true})->remarks(), ElementsAre(HasSubstr("and no optimizer")));
}

TEST_F(MegatronRuns, FilesOfTheDistributedOptimizerAreALoss) {
  const auto buckets = temp_.path() / "iter_0000003/mp_rank_00_000/distrib_optim.pt";
  ASSERT_THAT(open({})->losses(), IsEmpty());
  test::write_file(buckets, "x");
  const Losses losses = open_source(posix_storage(), temp_.path() / "iter_0000003")->losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses.front().role, Role::Optimizer);
  EXPECT_THAT(losses.front().why, HasSubstr("distrib_optim.pt"));
  const auto without = [](Json& optimizer, std::uint64_t /*stage*/) {
    optimizer = {{"optimizer", {{"param_groups", optimizer["optimizer"]["param_groups"]}}}};
  };
  const Json args = {{"use_distributed_optimizer", true}};
  const auto missing = open({.args = args, .optimizer = without})->losses();
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_THAT(missing.front().why, HasSubstr("distrib_optim.pt is missing"));
}

TEST_F(MegatronRuns, RandomStatesAreNoOptimizer) {
  const auto source = open({.has_random_state = true});
  const Losses losses = source->losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses.front().role, Role::ClientValue);
  EXPECT_EQ(losses.front().name, "rng_state");
}

TEST_F(MegatronRuns, NestedModelsOfOlderVersionsAreReadWithoutAnOptimizer) {
  const std::vector<std::string> norms = {"input_layernorm", "post_attention_layernorm",
                                          "final_layernorm"};
  const std::vector<std::string> newer = {"input_norm", "post_attention_norm", "final_norm"};
  for (const auto& names : {norms, newer}) {
    for (const bool has_optimizer : {false, true}) {
      const auto source = open({.stages = 2,
                                .has_optimizer = has_optimizer,
                                .has_random_state = true,
                                .older_norms = names});
      const std::string layer = "language_model.encoder.layers.1.";
      for (const std::string& name :
           {layer + names[0], layer + names[1], "language_model.encoder." + names[2]})
        EXPECT_TRUE(source->catalog().find(name + ".weight", state::kWeights)) << name;
      EXPECT_FALSE(source->catalog().find("rng_state.0.torch_rng_state", state::kWeights));
      EXPECT_EQ(source->losses().size(), has_optimizer ? 2u : 1u);
    }
    EXPECT_THAT(error_of([&] {
                  open({.is_lost = [](const auto& name) { return name.find("final") != name.npos; },
                        .older_norms = names});
                }),
                Fails(ErrorCode::Corrupt, {"in no file", "final_layernorm.weight"}));
  }
}

TEST_F(MegatronRuns, FilesOfAnotherIterationThanTheFolderAreDoubted) {
  EXPECT_THAT(open({})->remarks(), IsEmpty());
  EXPECT_THAT(open({.iteration = 2})->remarks(),
              ElementsAre(HasSubstr("iteration 2, and the folder is iter_0000003")));
}

TEST_F(MegatronRuns, RowsOfPaddingOfOneTensorParallelRankAreDropped) {
  const auto source = open({.args = {{"vocab_size", 7}}});
  const auto found = source->catalog().find("embedding.word_embeddings.weight", state::kWeights);
  ASSERT_TRUE(found);
  EXPECT_EQ(source->catalog().tensors[*found].shape, (Shape{7, kHidden}));
  EXPECT_THAT(source->remarks(), ElementsAre(HasSubstr("1 row of padding")));
}

TEST_F(MegatronRuns, ATensorThatNoFileHasIsDamage) {
  const Json learned = {{"position_embedding_type", "learned_absolute"}};
  for (const std::string lost :
       {"embedding.word_embeddings.weight", "decoder.final_layernorm.weight", "output_layer.weight",
        "mlp.linear_fc1.weight", "self_attention.linear_proj.weight", "input_layernorm.weight",
        "embedding.position_embeddings.weight"}) {
    const Gpt gpt{.stages = 2, .is_tied = false, .args = learned, .is_lost = {}};
    EXPECT_NO_THROW(open(gpt));
    Gpt damaged = gpt;
    damaged.is_lost = [&](const std::string& name) { return name.ends_with(lost); };
    EXPECT_THAT(error_of([&] { open(damaged); }),
                Fails(ErrorCode::Corrupt, {"are in no file", lost}));
  }
  const auto is_bias_needed = [&](const char* argument, const Json& value, const char* name) {
    EXPECT_THAT(error_of([&] {
                  open({.args = {{argument, value}}});
                }),
                Fails(ErrorCode::Corrupt, {"are in no file", name}));
  };
  is_bias_needed("add_bias_linear", true, "linear_qkv.bias");
  is_bias_needed("normalization", "LayerNorm", "input_layernorm.bias");
}

TEST_F(MegatronRuns, ATiedEmbeddingIsNotItsCopyOnTheLastStage) {
  const auto is_embedding = [](const std::string& name) {
    return name == "embedding.word_embeddings.weight";
  };
  EXPECT_THAT(error_of([&] { open({.stages = 2, .is_lost = is_embedding}); }),
              Fails(ErrorCode::Corrupt, {"are in no file", "word_embeddings"}));
}

TEST_F(MegatronRuns, AShapeThatAllFilesHaveWrongIsDamage) {
  const std::string layer = "decoder.layers.1.", attention = layer + "self_attention.";
  const std::pair<std::string, Shape> cases[] = {
      {"decoder.final_layernorm.weight", {3}},    {"embedding.position_embeddings.weight", {5, 3}},
      {layer + "input_layernorm.weight", {4, 1}}, {layer + "pre_mlp_layernorm.weight", {5}},
      {attention + "linear_qkv.weight", {6, 5}},  {attention + "linear_qkv.weight", {24}},
      {attention + "linear_proj.weight", {5, 2}}, {attention + "linear_proj.weight", {4, 1}},
      {layer + "mlp.linear_fc1.weight", {3, 5}},  {layer + "mlp.linear_fc2.weight", {5, 3}}};
  for (const auto& [name, shape] : cases)
    EXPECT_THAT(error_of([&] {
                  open({.tensor_ranks = 2, .shapes = {{name, shape}}});
                }),
                Fails(ErrorCode::Corrupt, {name}));
  // The layers differ, and nothing else tells which size is right.
  const std::map<std::string, Shape> smaller = {{layer + "mlp.linear_fc1.weight", {2, 4}},
                                                {layer + "mlp.linear_fc2.weight", {4, 2}}};
  EXPECT_THAT(error_of([&] { open({.tensor_ranks = 2, .shapes = smaller}); }),
              Fails(ErrorCode::Corrupt, {"4 rows in all", "layers.0.mlp.linear_fc1.weight"}));
  EXPECT_NO_THROW(open({.tensor_ranks = 2,
                        .args = {{"heterogeneous_layers_config_path", "layers.json"}},
                        .shapes = smaller}));
}

TEST_F(MegatronRuns, ArgumentsTellTheRowsOfPositions) {
  EXPECT_NO_THROW(open({.args = {{"max_position_embeddings", 5}}}));
  EXPECT_THAT(error_of([&] {
                open({.args = {{"max_position_embeddings", 6}}});
              }),
              Fails(ErrorCode::Corrupt, {"5 rows", "max_position_embeddings"}));
}

/// Returns the ranks that have the rows of a first matrix.
std::vector<float> ranks_of_rows(const Source& source) {
  const auto found =
      source.catalog().find("decoder.layers.0.mlp.linear_fc1.weight", state::kWeights);
  const std::vector<std::byte> bytes = read_all(source, found.value());
  std::vector<float> elements(bytes.size() / sizeof(float));
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  std::vector<float> ranks;
  for (std::size_t i = 0; i < elements.size(); i += kHidden) ranks.push_back(elements[i]);
  return ranks;
}

TEST_F(MegatronRuns, ShapesTellOfGates) {
  for (const Json& swiglu : {Json(true), Json(false), Json()}) {
    const auto source = open({.tensor_ranks = 2, .is_gated = true, .args = {{"swiglu", swiglu}}});
    EXPECT_THAT(ranks_of_rows(*source), ElementsAre(0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1)) << swiglu;
  }
  EXPECT_THAT(ranks_of_rows(*open({.tensor_ranks = 2})), ElementsAre(0, 0, 0, 1, 1, 1));
  const Gpt wrong{.tensor_ranks = 2, .args = {{"swiglu", true}}};
  EXPECT_THAT(error_of([&] { open(wrong); }), Fails(ErrorCode::Corrupt, {"linear_fc1", "swiglu"}));
}

TEST_F(MegatronRuns, SizesThatContradictTheTensorsAreDamage) {
  for (const char* name :
       {"hidden_size", "ffn_hidden_size", "padded_vocab_size", "kv_channels", "vocab_size"}) {
    const Gpt wrong{.tensor_ranks = 2, .args = {{name, 3}}};
    EXPECT_THAT(error_of([&] { open(wrong); }),
                Fails(ErrorCode::Corrupt, {"do not describe", name}));
  }
  // All rows of a rank may be padding where one rank has room for the vocabulary.
  const Json small = {{"vocab_size", 3}, {"make_vocab_size_divisible_by", kVocabulary / 2}};
  EXPECT_NO_THROW(open({.tensor_ranks = 2, .args = small}));
}

}  // namespace
}  // namespace unishard::converters
