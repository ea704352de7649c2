// Regular checkpoints of pipelines, read whole and compared bit by bit with what the ranks had in
// memory; what is refused of them.
#include "unishard/converters/cut_patterns.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "containers/pickle_json.hpp"
#include "containers/torch_file.hpp"
#include "copied_run.hpp"
#include "expect.hpp"
#include "expected_tensors.hpp"
#include "formats/deepspeed/pickle_fields.hpp"
#include "temp_dir.hpp"
#include "torch_files.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace unishard::converters {
namespace {

using test::error_of;
using test::Fails;
namespace fs = std::filesystem;

const std::vector<std::string> kExact = {"pp2_stage0_bf16",
                                         "pp2_stage0_fp32",
                                         "pp2_stage1_bf16_tied",
                                         "pp2_stage1_fp32",
                                         "pp2dp2_stage1_bf16",
                                         "pp2_stage1_fp32_groups_frozen",
                                         "pp2dp2_stage1_fp32_tied_functions",
                                         "mg_pp2tp2_stage1_bf16_tied"};

/// The groups with the parameters of all ranks, each once.
SortedJson groups_of(const SortedJson& about) {
  SortedJson groups = about["param_groups"];
  for (std::size_t g = 0; g < groups.size(); ++g) {
    SortedJson& params = groups[g]["params"] = SortedJson::array();
    for (std::size_t rank = 0; rank < about["param_groups_of_ranks"].size(); ++rank) {
      for (const SortedJson& name : about["param_groups_of_ranks"][std::to_string(rank)][g]) {
        if (std::ranges::find(params, name) == params.end()) params.push_back(name);
      }
    }
  }
  return groups;
}

TEST(DeepSpeedPipeline, EveryFixtureGivesTheBitsOfTheWholeModel) {
  SKIP_WITHOUT_FIXTURES();
  std::size_t tensors = 0;
  for (const std::string& name : kExact) {
    SCOPED_TRACE(name);
    const auto source = open_case(name);
    // Averaged: expected is the mean of the ranks' 16-bit weights; the catalog's is rounded from
    // the mean of the masters, as a resumed run has it.
    tensors +=
        compare_tensors(*source, parallel_case(name) / "expected.safetensors", {"2.gain|weights"});
    const Catalog& catalog = source->catalog();
    const SortedJson about = about_case(name);
    expect_counts(catalog, about);
    EXPECT_EQ(SortedJson::parse(catalog.groups.dump()), groups_of(about));
    EXPECT_TRUE(catalog.aliases.empty());
    Json client = catalog.client_state;
    erase_cut_patterns(client);
    EXPECT_TRUE(client.is_null()) << client;
    EXPECT_TRUE(source->notes().empty()) << source->notes().front();
    EXPECT_TRUE(source->losses().empty()) << text_of(source->losses().front());
  }
  EXPECT_EQ(tensors, 1146u);
}

TEST(DeepSpeedPipeline, EqualsTheUniversalCheckpointMadeOfIt) {
  SKIP_WITHOUT_FIXTURES();
  const std::string name = "mg_pp2tp2_stage1_bf16_tied";
  const auto regular = open_case(name), universal = open_case("universal_" + name);
  EXPECT_EQ(regular->catalog().step, universal->catalog().step);
  for (std::size_t i = 0; i < universal->catalog().tensors.size(); ++i) {
    const TensorInfo& tensor = universal->catalog().tensors[i];
    const auto found = regular->catalog().find(tensor.fqn, tensor.state);
    ASSERT_TRUE(found) << tensor.label();
    EXPECT_TRUE(read_all(*regular, *found) == read_all(*universal, i)) << tensor.label();
  }
}

/// The states of a tied module are on both stages, and no file names them at stage 0.
TEST(DeepSpeedPipeline, StatesThatTiedModulesLeaveUnnamedAreLostByName) {
  SKIP_WITHOUT_FIXTURES();
  const std::string name = "pp2dp2_stage0_fp32_tied";
  const auto source = open_case(name);
  const Losses losses = source->losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].role, Role::Optimizer);
  EXPECT_THAT(losses[0].why, testing::HasSubstr("tied modules"));
  const auto expected = open_source(posix_storage(), parallel_case(name) / "expected.safetensors");
  std::size_t compared = 0;
  for (std::size_t i = 0; i < expected->catalog().tensors.size(); ++i) {
    std::string label = expected->catalog().tensors[i].fqn;
    if (!label.ends_with("|weights") && !label.ends_with("|buffer")) continue;
    const std::string tied = "tied_modules.embed.";
    if (label.starts_with(tied)) label = "0." + label.substr(tied.size());
    const auto found = counterpart(source->catalog(), label);
    ASSERT_TRUE(found) << label;
    EXPECT_TRUE(read_all(*source, *found) == read_all(*expected, i)) << label;
    ++compared;
  }
  EXPECT_EQ(compared, source->catalog().tensors.size());
}

Path tied_golden(const std::string& name) {
  return Path(UNISHARD_TEST_DATA) / "golden/deepspeed" / name;
}

/// The last use of the module has a forward_fn, and so no file: the second stage's masters have the
/// shapes that the first stage's file tells.
TEST(DeepSpeedPipeline, ATiedModuleOfStage0HasTheShapesOfAnotherStagesFile) {
  const auto source = open_source(posix_storage(), tied_golden("tied_stage0_bf16"));
  const auto expected = open_source(posix_storage(), tied_golden("tied_stage0_bf16.safetensors"));
  for (std::size_t i = 0; i < expected->catalog().tensors.size(); ++i) {
    const std::string label = expected->catalog().tensors[i].fqn;
    const auto found = counterpart(source->catalog(), label);
    ASSERT_TRUE(found) << label;
    EXPECT_TRUE(read_all(*source, *found) == read_all(*expected, i)) << label;
    const std::string fqn = label.substr(0, label.find('|'));
    for (const std::string_view moment : {state::kExpAvg, state::kExpAvgSq})
      EXPECT_TRUE(source->catalog().find(fqn, moment)) << label;
  }
  EXPECT_EQ(expected->catalog().tensors.size(), 6u);
  EXPECT_EQ(source->catalog().tensors.size(), 4 * 6u);
  EXPECT_TRUE(source->notes().empty());
  EXPECT_TRUE(source->losses().empty());
  EXPECT_TRUE(source->remarks().empty());
}

/// A tied module without a forward_fn has a file for each of its layers, and states of each stage.
TEST(DeepSpeedPipeline, FilesOfATiedModuleOfStage0HaveTheirStates) {
  const auto told = testing::Contains(testing::HasSubstr("have no states in the optimizer"));
  const Path golden = tied_golden("tied_stage0_fp32");
  EXPECT_THAT(open_source(posix_storage(), golden)->notes(), testing::Not(told));
  const test::TempDir folder;
  test::copy_folder(golden, folder.path() / "run");
  const Path tag = folder.path() / "run/global_step2";
  const std::string left = "layer_04-model_states.pt", last = "layer_03-model_states.pt";
  std::string bytes = test::read_file(tag / last);
  for (std::size_t at = bytes.find("layer_03-"); at != std::string::npos;
       at = bytes.find("layer_03-", at + 1))
    bytes[at + 7] = '4';
  test::write_file(tag / left, bytes);
  EXPECT_THAT(open_source(posix_storage(), folder.path() / "run")->notes(), told);
}

/// No buffer tells of layer 6. The optimizer has more states than the other layers have parameters.
TEST(DeepSpeedPipeline, AMissingLayerOfStage0IsALossOfWeights) {
  SKIP_WITHOUT_FIXTURES();
  const CopiedRun copy("pp2_stage0_fp32");
  fs::remove(copy.file("layer_06-model_states.pt"));
  const Losses losses = copy.open()->losses();
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0].role, Role::Weight);
  EXPECT_EQ(losses[0].name, "2 trained parameters");
  EXPECT_EQ(losses[1].role, Role::Optimizer);
}

TEST(DeepSpeedPipeline, AStaleCopyOfATiedTensorIsARemark) {
  SKIP_WITHOUT_FIXTURES();
  const auto remarks = open_case("pp2_stage1_bf16_tied")->remarks();
  ASSERT_EQ(remarks.size(), 3u);
  EXPECT_THAT(remarks[0], testing::HasSubstr("tied_modules.embed.pos.weight [fp32]: stage 1"));
}

/// A folder looks the same where all layers of the module have a forward_fn.
TEST(DeepSpeedPipeline, ATiedModuleWithoutAFileIsARemark) {
  SKIP_WITHOUT_FIXTURES();
  const auto told = testing::Contains(testing::HasSubstr("no layer's file has tied_modules.embed"));
  const CopiedRun copy("pp2_stage1_bf16_tied");
  EXPECT_THAT(copy.open()->remarks(), testing::Not(told));
  fs::remove(copy.file("layer_00-model_states.pt"));
  EXPECT_THAT(copy.open()->remarks(), told);
}

TEST(DeepSpeedPipeline, EveryElementIsOfTheRankThatWroteIt) {
  SKIP_WITHOUT_FIXTURES();
  const auto source = open_case("pp2dp2_stage1_bf16");
  const auto ranks = [&](std::string_view fqn, std::string_view state) {
    std::set<std::uint32_t> found;
    for (const StoredRange& range :
         source->stored_ranges(source->catalog().find(fqn, state).value()))
      found.insert(range.rank);
    return found;
  };
  EXPECT_EQ(ranks("0.tok.weight", state::kFp32), (std::set<std::uint32_t>{0}));
  EXPECT_EQ(ranks("6.bias", state::kExpAvg), (std::set<std::uint32_t>{3}));
  EXPECT_EQ(ranks("6.bias", state::kWeights), (std::set<std::uint32_t>{2}));
}

TEST(DeepSpeedPipeline, AMissingOrStrayFileIsNamed) {
  SKIP_WITHOUT_FIXTURES();
  const std::string tied = "mg_pp2tp2_stage1_bf16_tied", plain = "pp2dp2_stage1_bf16";
  struct Case {
    std::string fixture, removed, copied;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {plain, "layer_03-model_states.pt", "", {"layer 3", "missing", "are lost", "3."}},
      {"pp2_stage0_fp32", "layer_03-model_states.pt", "", {"layer 3", "missing", "attn.mask"}},
      {tied, "layer_02-model_01-model_states.pt", "", {"layer 2", "ranks 0 only, of 2", "lost"}},
      {plain,
       "mp_rank_01_model_states.pt",
       "",
       {"mp_rank_01_model_states.pt is missing", "stage 1"}},
      {plain, "mp_rank_00_model_states.pt", "", {"mp_rank_00_model_states.pt is missing"}},
      {plain,
       "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt",
       "",
       {"mp_rank_01 optimizer files of rank 1 are missing"}},
      {plain,
       "mp_rank_01_model_states.pt",
       "mp_rank_02_model_states.pt",
       {"rank 2", "another save"}},
      {tied,
       "layer_02-model_01-model_states.pt",
       "layer_02-model_02-model_states.pt",
       {"layer_02-model_02", "tensor-parallel rank 2"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.fixture + " without " + c.removed);
    const CopiedRun copy(c.fixture);
    if (!c.copied.empty()) fs::copy_file(copy.file(c.removed), copy.file(c.copied));
    ASSERT_TRUE(fs::remove(copy.file(c.removed)));
    const Error error = error_of([&] { copy.open(); });
    EXPECT_EQ(error.code(), ErrorCode::Corrupt);
    for (const std::string& word : c.words) EXPECT_THAT(error.what(), testing::HasSubstr(word));
  }
}

TEST(DeepSpeedPipeline, TwoFilesOfOneLayerAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  const CopiedRun copy("pp2dp2_stage1_bf16");
  fs::copy_file(copy.file("layer_03-model_states.pt"), copy.file("layer_3-model_states.pt"));
  EXPECT_THAT(error_of([&] { copy.open(); }),
              Fails(ErrorCode::Corrupt, {"layer_03-model_states.pt", "layer_3-model_states.pt"}));
}

/// Layers 2 and 3 have tensors of the same names and shapes.
TEST(DeepSpeedPipeline, SwappedLayersAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  const std::string two = "layer_02-model_states.pt", three = "layer_03-model_states.pt";
  for (const std::string name : {"pp2dp2_stage1_bf16", "pp2_stage0_fp32", "pp2_stage0_bf16"}) {
    SCOPED_TRACE(name);
    const CopiedRun copy(name);
    copy.swap(two, three);
    EXPECT_THAT(error_of([&] { copy.open(); }),
                Fails(ErrorCode::Corrupt, {two, "written as", three}));
  }
  for (const std::string name : {"pp2dp2_stage1_bf16", "pp2_stage1_fp32", "pp2_stage0_bf16"}) {
    SCOPED_TRACE(name + ", archives renamed");
    const CopiedRun copy(name);
    copy.swap(two, three);
    copy.rename_archive(two, three);
    copy.rename_archive(three, two);
    EXPECT_THAT(error_of([&] { copy.open(); }),
                Fails(ErrorCode::Corrupt, {"layer_0", "in another's place"}));
  }
}

TEST(DeepSpeedPipeline, ALayerOfAnotherShapeIsRefused) {
  SKIP_WITHOUT_FIXTURES();
  const CopiedRun copy("pp2_stage1_fp32");
  fs::copy_file(copy.file("layer_05-model_states.pt"), copy.file("layer_06-model_states.pt"),
                fs::copy_options::overwrite_existing);
  copy.rename_archive("layer_06-model_states.pt", "layer_05-model_states.pt");
  EXPECT_THAT(error_of([&] { copy.open(); }),
              Fails(ErrorCode::Corrupt, {"layer_06-model_states.pt", "weight", "mp_rank_01"}));
}

TEST(DeepSpeedPipeline, StagesOfTwoSavesAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  const CopiedRun copy("pp2dp2_stage1_bf16");
  fs::copy_file(copy.file("mp_rank_00_model_states.pt"), copy.file("mp_rank_01_model_states.pt"),
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(error_of([&] { copy.open(); }),
              Fails(ErrorCode::Corrupt, {"mp_rank_01_model_states.pt", "written as"}));
  copy.rename_archive("mp_rank_01_model_states.pt", "mp_rank_00_model_states.pt");
  EXPECT_THAT(error_of([&] { copy.open(); }),
              Fails(ErrorCode::Corrupt, {"stage 0", "stage 1", "not of one save"}));
}

/// Saves into the folder of an earlier one leave the files of the layers that only the earlier has.
void save_over(const CopiedRun& older, const std::string& newer) {
  fs::copy(parallel_case(newer) / "checkpoint", older.path(),
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
}

TEST(DeepSpeedPipeline, ALayerWithABufferThatNoStageNamesIsOfAnotherSave) {
  SKIP_WITHOUT_FIXTURES();
  struct Case {
    std::string older, newer;
  };
  const std::vector<Case> cases = {{"pp2_stage1_bf16_tied", "pp2_stage0_bf16"},
                                   {"pp2_stage1_bf16_tied", "pp2_stage0_fp32"},
                                   {"pp2dp2_stage1_bf16", "pp2dp2_stage0_fp32_tied"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.newer + " over " + c.older);
    const CopiedRun copy(c.newer);
    fs::copy_file(parallel_case(c.older) / "checkpoint/global_step3/layer_01-model_states.pt",
                  copy.file("layer_01-model_states.pt"));
    EXPECT_THAT(error_of([&] { copy.open(); }),
                Fails(ErrorCode::Corrupt, {"layer_01-model_states.pt", "left from another save",
                                           "attn.mask", "1.attn.mask"}));
  }
}

/// No buffer tells: a frozen layer looks the same.
TEST(DeepSpeedPipeline, LayersThatNoStageNamesAreNoted) {
  SKIP_WITHOUT_FIXTURES();
  const CopiedRun copy("pp2_stage0_bf16");
  save_over(copy, "pp2_stage1_bf16_tied");
  const auto notes = copy.open()->notes();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], testing::HasSubstr("layer_05-model_states.pt, layer_06-model_states.pt"));
  EXPECT_THAT(notes[0], testing::HasSubstr("another save of this tag left them"));
  const CopiedRun unnamed("pp2_stage0_fp32");
  fs::copy_file(unnamed.file("layer_06-model_states.pt"), unnamed.file("layer_07-model_states.pt"));
  unnamed.rename_archive("layer_07-model_states.pt", "layer_06-model_states.pt");
  const auto counted = unnamed.open()->notes();
  ASSERT_EQ(counted.size(), 1u);
  EXPECT_THAT(counted[0],
              testing::HasSubstr("2 parameters of the layers have no states in the optimizer"));
}

/// A tied module has states on two stages, so that the counts of parameters agree here.
TEST(DeepSpeedPipeline, ALayerBesideATiedModuleIsNotedByItsShapes) {
  SKIP_WITHOUT_FIXTURES();
  const CopiedRun copy("pp2_stage0_fp32");
  save_over(copy, "pp2dp2_stage0_fp32_tied");
  EXPECT_THAT(copy.open()->notes(),
              testing::Contains(testing::HasSubstr("have no states in the optimizer: they are "
                                                   "frozen, or another save of this tag")));
}

TEST(DeepSpeedPipeline, ALayerOfAnotherTypeIsNoted) {
  SKIP_WITHOUT_FIXTURES();
  const CopiedRun copy("pp2_stage0_fp32");
  const std::string file = "layer_03-model_states.pt";
  fs::copy_file(parallel_case("pp2_stage0_bf16") / "checkpoint/global_step3" / file,
                copy.file(file), fs::copy_options::overwrite_existing);
  EXPECT_THAT(copy.open()->notes(),
              testing::Contains(testing::AllOf(
                  testing::HasSubstr("float32 in layer_02-model_states.pt and bfloat16 in " + file),
                  testing::HasSubstr("another save of this tag"))));
}

/// Writes layer 3 of `run` again, as `change` leaves its tensors.
void change_layer(const CopiedRun& run,
                  const std::function<void(std::map<std::string, Shape>&)>& change) {
  const std::string name = "layer_03-model_states.pt";
  std::map<std::string, Shape> shapes;
  {
    const torch::TorchFile file(torch::whole_file(posix_storage(), run.file(name)));
    for (std::size_t i = 0; i < file.root().pair_count(); ++i) {
      const std::string key(file.root().key(i).string());
      shapes[key] = deepspeed::tensor_of(file, file.root().value(i), "it").shape;
    }
  }
  change(shapes);
  Json object = Json::object();
  std::map<std::string, Made> tensors;
  for (const auto& [key, shape] : shapes) {
    object[key] = tensor(key);
    tensors[key] = {DType::Float32, shape, std::vector<float>(element_count(shape), 0.5f)};
  }
  fs::remove(run.file(name));
  save_torch(run.file(name), object, tensors);
}

/// Layers 2, 3 and 4 are of one kind, and no optimizer tells what is in layer 3: it is frozen, or
/// the states have no names.
TEST(DeepSpeedPipeline, ALayerThatDiffersFromItsKindIsNoted) {
  SKIP_WITHOUT_FIXTURES();
  using Shapes = std::map<std::string, Shape>;
  const std::string cut = "attn.qkv.weight";
  struct Case {
    std::function<void(Shapes&)> change;
    std::string words;
  };
  const std::vector<Case> cases = {
      {[&](Shapes& shapes) { shapes.erase(cut); }, "has no \"attn.qkv.weight\""},
      {[&](Shapes& shapes) {
         shapes[cut] = {5, 12};
       },
       "\"attn.qkv.weight\" of shape (5, 12)"},
      {[&](Shapes& shapes) {
         shapes[cut + "x"] = {36, 12}, shapes.erase(cut);
       },
       "has no \"attn.qkv.weight\""},
      {[&](Shapes& shapes) { shapes.erase("norm1.bias"), shapes.erase("norm2.bias"); },
       "\"norm1.bias\""},
  };
  for (const std::string name : {"pp2_stage0_fp32", "pp2_stage1_fp32_groups_frozen"}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(name + ": " + c.words);
      const CopiedRun copy(name);
      change_layer(copy, c.change);
      EXPECT_THAT(copy.open()->notes(),
                  testing::Contains(testing::AllOf(
                      testing::HasSubstr("layer_03-model_states.pt"), testing::HasSubstr(c.words),
                      testing::HasSubstr("layer_02-model_states.pt"))));
    }
    const CopiedRun copy(name);
    change_layer(copy, [](Shapes& shapes) { shapes["rotary.scale"] = {1}; });
    for (const std::string& note : copy.open()->notes())
      EXPECT_THAT(note, testing::Not(testing::HasSubstr("layer_02-model_states.pt")));
  }
}

/// A stage of ZeRO writes no optimizer into the model file. BF16_Optimizer at stage 0 writes both.
TEST(DeepSpeedPipeline, PartitionsOfAnotherSaveAreRefused) {
  SKIP_WITHOUT_FIXTURES();
  const CopiedRun copy("pp2_stage1_fp32");
  save_over(copy, "pp2_stage0_fp32");
  EXPECT_THAT(
      error_of([&] { copy.open(); }),
      Fails(ErrorCode::Unsupported, {"two saves have one tag", "mp_rank_00", "zero_pp_rank_0"}));
  const CopiedRun other("pp2_stage0_bf16");
  const std::string file = "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt";
  fs::copy_file(parallel_case("pp2_stage1_bf16_tied") / "checkpoint/global_step3" / file,
                other.file(file), fs::copy_options::overwrite_existing);
  EXPECT_THAT(error_of([&] { other.open(); }), testing::Truly([](const Error& error) {
                return std::string(error.what()).find("mp_rank_01") != std::string::npos;
              }));
}

// ---- Small runs of two stages without optimizer, written here.

/// Layers 0 and 1, one for each stage.
struct TwoStages {
  Json degrees = {{"pp_degree", 2}, {"tp_degree", 1}};
  Json buffers = Json::array({"1.mask"});
  Json optimizer = nullptr;  ///< of both; {"$tensor": "master"} has three elements

  std::unique_ptr<Source> open() {
    for (int stage = 0; stage < 2; ++stage) {
      const Json model = {{"module", nullptr},
                          {"optimizer", optimizer},
                          {"buffer_names", stage == 0 ? Json::array({"0.mask"}) : buffers},
                          {"global_steps", 1},
                          {"skipped_steps", 0},
                          {"dp_world_size", 1},
                          {"mp_world_size", 2},
                          {"checkpoint_parallel_dimensions", degrees}};
      save_torch(folder.path() / fmt::format("mp_rank_0{}_model_states.pt", stage), model,
                 {{"master", {DType::Float32, {3}, {1, 2, 3}}}});
      save_torch(folder.path() / fmt::format("layer_0{}-model_states.pt", stage),
                 {{"w", tensor("w")}, {"mask", tensor("mask")}},
                 {{"w", {DType::Float32, {2}, {1, 2}}}, {"mask", {DType::Float32, {1}, {3}}}});
    }
    return open_source(posix_storage(), folder.path());
  }

  test::TempDir folder;
};

TEST(DeepSpeedPipeline, ARunWithoutOptimizerIsItsLayers) {
  const auto source = TwoStages().open();
  std::vector<std::string> labels;
  for (const TensorInfo& info : source->catalog().tensors) labels.push_back(info.label());
  EXPECT_EQ(labels, (std::vector<std::string>{"0.w [weights]", "0.mask [buffer]", "1.w [weights]",
                                              "1.mask [buffer]"}));
  EXPECT_TRUE(source->losses().empty());
}

TEST(DeepSpeedPipeline, MastersWithoutNamesAreARemark) {
  TwoStages run;
  EXPECT_TRUE(run.open()->remarks().empty());
  TwoStages trained;
  trained.optimizer = {
      {"optimizer_state_dict",
       {{"state", Json::object()}, {"param_groups", Json::array({{{"params", {0}}}})}}},
      {"fp32_groups_flat", Json::array({tensor("master")})}};
  const auto source = trained.open();
  EXPECT_FALSE(source->losses().empty());
  EXPECT_THAT(source->remarks(),
              testing::Contains(testing::HasSubstr("fp32 masters are in the files, and have no")));
}

/// SGD without momentum has no states, and nothing else tells the names of the layers.
TEST(DeepSpeedPipeline, AMissingLayerOfAnOptimizerWithoutStatesIsTold) {
  const test::TempDir folder;
  const auto file = [&](const char* kind, int number, const char* end) {
    return folder.path() / fmt::format("{}_{:02}{}", kind, number, end);
  };
  for (int stage = 0; stage < 2; ++stage) {
    const Json group = {{"params", {0, 1, 2, 3}}, {"lr", 0.1}, {"momentum", 0}};
    const Json optimizer = {{"state", Json::object()}, {"param_groups", Json::array({group})}};
    save_torch(file("mp_rank", stage, "_model_states.pt"),
               {{"module", nullptr},
                {"optimizer", optimizer},
                {"buffer_names", Json::array()},
                {"global_steps", 1},
                {"skipped_steps", 0},
                {"dp_world_size", 1},
                {"mp_world_size", 2},
                {"checkpoint_parallel_dimensions", {{"pp_degree", 2}, {"tp_degree", 1}}}},
               {});
  }
  for (int layer = 0; layer < 4; ++layer) {
    const auto value = static_cast<float>(layer);
    save_torch(file("layer", layer, "-model_states.pt"), {{"w", tensor("w")}, {"b", tensor("b")}},
               {{"w", {DType::Float32, {2}, {value, 5}}}, {"b", {DType::Float32, {1}, {value}}}});
  }
  const auto open = [&] { return open_source(posix_storage(), folder.path()); };
  EXPECT_TRUE(open()->losses().empty());
  fs::rename(file("layer", 3, "-model_states.pt"), folder.path() / "last");
  EXPECT_THAT(open()->notes(),
              testing::Contains(testing::HasSubstr("list 2 parameters more than the layers'")));
  fs::rename(folder.path() / "last", file("layer", 3, "-model_states.pt"));
  fs::remove(file("layer", 2, "-model_states.pt"));
  const Losses losses = open()->losses();
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0].role, Role::Weight);
  EXPECT_EQ(losses[0].name, "2 trained parameters");
  EXPECT_THAT(losses[0].why, testing::HasSubstr("the file of layer 2 is missing"));
  EXPECT_THAT(losses[1].why, testing::Not(testing::HasSubstr("tied")));
}

TEST(DeepSpeedPipeline, ForgedDegreesAndNamesAreRefused) {
  const std::int64_t huge = std::int64_t{1} << 62;
  struct Case {
    std::string what;
    std::function<void(TwoStages&)> change;
    std::string words;
  };
  const std::vector<Case> cases = {
      {"stages", [=](TwoStages& run) { run.degrees["pp_degree"] = huge; }, "pp_degree"},
      {"tensor ranks", [=](TwoStages& run) { run.degrees["tp_degree"] = huge; }, "tp_degree"},
      {"many stages", [](TwoStages& run) { run.degrees["pp_degree"] = 4000; }, "missing"},
      {"no stages", [](TwoStages& run) { run.degrees["pp_degree"] = 0; }, "pp_degree 0"},
      {"no tensor ranks", [](TwoStages& run) { run.degrees["tp_degree"] = 0; }, "tp_degree 0"},
      {"negative", [](TwoStages& run) { run.degrees["pp_degree"] = -2; }, ""},
      {"layer", [](TwoStages& run) { run.buffers = {"999999999.mask"}; }, "layer 999999999"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    TwoStages run;
    c.change(run);
    EXPECT_THAT(error_of([&] { run.open(); }), Fails(ErrorCode::Corrupt, c.words));
  }
}

}  // namespace
}  // namespace unishard::converters
