// Checkpoints of Hugging Face's Trainer (transformers 5.23): a Llama, and an adapter of PEFT.
#include "unishard/converters/adapter_names.hpp"
#include "unishard/converters/hub_names.hpp"
#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/converters/registry.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "core/wrapped_names.hpp"
#include "expect.hpp"
#include "fixtures.hpp"
#include "formats/trainer/known_models.hpp"
#include "formats/trainer/parameter_names.hpp"
#include "formats/trainer/trainer_state.hpp"
#include "read_source.hpp"
#include "reading/fused_parameters.hpp"
#include "reading/model_type.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"
#include "torch_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

namespace unishard::converters {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

const Path kFolders = Path(UNISHARD_TEST_DATA) / "golden/trainer";
const std::string kLayer = "model.layers.0.";
const Json kDecaying = {"model.embed_tokens.weight",
                        kLayer + "self_attn.q_proj.weight",
                        kLayer + "self_attn.k_proj.weight",
                        kLayer + "self_attn.v_proj.weight",
                        kLayer + "self_attn.o_proj.weight",
                        kLayer + "mlp.gate_proj.weight",
                        kLayer + "mlp.up_proj.weight",
                        kLayer + "mlp.down_proj.weight",
                        "lm_head.weight"};
const Json kNorms = {kLayer + "input_layernorm.weight", kLayer + "post_attention_layernorm.weight",
                     "model.norm.weight"};

std::vector<std::string> tensor_labels(const Catalog& catalog) {
  std::vector<std::string> out;
  for (const TensorInfo& tensor : catalog.tensors) out.push_back(tensor.label());
  return out;
}

/// Writes the checkpoint again in its format; returns what the copy holds.
std::unique_ptr<Source> copy_of(const Source& source, const Path& output, const Json& layout,
                                Output wanted = {}) {
  wanted.format = wanted.format.empty() ? source.format() : wanted.format;
  wanted.path = output;
  wanted.layout = layout;
  const auto sink = make_sink(posix_storage(), wanted, source.catalog());
  CopyPlan plan{.source = &source, .target = &source.catalog(), .tensor_map = {}};
  for (std::size_t i = 0; i < source.catalog().tensors.size(); ++i) plan.tensor_map.push_back(i);
  copy(plan, *sink, {});
  sink->commit();
  return open_source(posix_storage(), output);
}

void expect_same_tensors(const Source& a, const Source& b) {
  ASSERT_THAT(tensor_labels(b.catalog()),
              testing::UnorderedElementsAreArray(tensor_labels(a.catalog())));
  for (std::size_t i = 0; i < a.catalog().tensors.size(); ++i) {
    const std::vector<std::string> names = tensor_labels(b.catalog());
    const auto at = std::ranges::find(names, a.catalog().tensors[i].label()) - names.begin();
    EXPECT_EQ(read_all(a, i), read_all(b, static_cast<std::size_t>(at))) << names[i];
  }
}

class TrainerFolder : public testing::Test {
 protected:
  /// A copy of a golden folder, to be changed.
  Path copied(const std::string& name) const {
    fs::copy(kFolders / name, temp_.path() / name);
    return temp_.path() / name;
  }
  const test::TempDir temp_;
};

TEST_F(TrainerFolder, IsOneTrainingState) {
  const auto source = open_source(posix_storage(), kFolders / "llama");
  const Catalog& catalog = source->catalog();
  EXPECT_EQ(source->format(), "trainer");
  EXPECT_EQ(catalog.tensors.size(), 36u);
  ASSERT_EQ(catalog.groups.size(), 2u);
  EXPECT_EQ(catalog.groups[0]["params"], kDecaying);
  EXPECT_EQ(catalog.groups[1]["params"], kNorms);
  EXPECT_EQ(catalog.groups[0]["weight_decay"], 0.1);
  EXPECT_EQ(catalog.step, 2);
  EXPECT_EQ(catalog.scheduler["last_epoch"], 2);
  EXPECT_EQ(catalog.data_position, Json({{"global_steps", 2}}));
  EXPECT_THAT(notes_of(*source), testing::IsEmpty());
}

/// DeepSpeed's optimizers may have counted a step more than the run.
TEST_F(TrainerFolder, CountsTheStepsOfTheRunAndThoseOfTheOptimizer) {
  const auto source = open_source(posix_storage(), kFolders / "llama");
  Catalog catalog = source->catalog();
  for (const Json& position : {Json{{"global_steps", 6}}, Json(), Json{{"global_steps", "six"}}}) {
    catalog.step = 7;
    catalog.data_position = position;
    const std::int64_t expected = position.is_object() && position["global_steps"] == 6 ? 6 : 7;
    const Path folder = temp_.path() / fmt::format("{}-{}", expected, position.size());
    const auto sink =
        make_sink(posix_storage(), {.format = "trainer", .path = folder, .tag = ""}, catalog);
    CopyPlan plan{.source = source.get(), .target = &catalog, .tensor_map = {}};
    for (std::size_t i = 0; i < catalog.tensors.size(); ++i) plan.tensor_map.push_back(i);
    copy(plan, *sink, {});
    sink->commit();
    const auto copy = open_source(posix_storage(), folder);
    EXPECT_EQ(copy->catalog().step, 7) << position;
    EXPECT_EQ(copy->catalog().data_position["global_steps"], expected) << position;
  }
}

std::string text_of(const Path& file) { return read_text(posix_storage(), file, 1 << 20); }

/// transformers 5 stacks the experts of a layer in memory, and the files have one tensor for each.
TEST_F(TrainerFolder, OfExpertsHasTheParametersOfTheModule) {
  const Json qwen = {"model.embed_tokens.weight",
                     kLayer + "self_attn.q_proj.weight",
                     kLayer + "self_attn.k_proj.weight",
                     kLayer + "self_attn.v_proj.weight",
                     kLayer + "self_attn.o_proj.weight",
                     kLayer + "mlp.experts.gate_up_proj",
                     kLayer + "mlp.experts.down_proj",
                     kLayer + "mlp.gate.weight",
                     "lm_head.weight"};
  Json mixtral = qwen;
  std::rotate(mixtral.begin() + 5, mixtral.begin() + 7, mixtral.begin() + 8);
  for (const auto& [name, decaying] : {std::pair{"qwen3_moe", qwen}, {"mixtral", mixtral}}) {
    const auto source = open_source(posix_storage(), kFolders / name);
    EXPECT_EQ(source->catalog().groups[0]["params"], decaying) << name;
    EXPECT_THAT(notes_of(*source), testing::IsEmpty());
    const auto labels = tensor_labels(source->catalog());
    for (const char* state : {"fp32", "exp_avg", "exp_avg_sq"}) {
      const auto at =
          std::ranges::find(labels, fmt::format("{}mlp.experts.gate_up_proj [{}]", kLayer, state));
      ASSERT_NE(at, labels.end()) << state;
      const auto number = static_cast<std::size_t>(at - labels.begin());
      EXPECT_EQ(source->catalog().tensors[number].shape, (Shape{2, 8, 4}));
    }
  }
}

TEST_F(TrainerFolder, OfExpertsIsOnTheHubWhatItsModelFileIs) {
  for (const char* name : {"qwen3_moe", "mixtral"}) {
    const std::string config = text_of(kFolders / name / "config.json");
    const auto [hub, experts, remark] =
        hub_named(open_source(posix_storage(), kFolders / name), config);
    EXPECT_EQ(experts, 2u);
    EXPECT_THAT(remark, HasSubstr("become 6 tensors"));
    const auto file = open_source(posix_storage(), kFolders / name / "model.safetensors");
    const std::vector<TensorInfo>& tensors = hub->catalog().tensors;
    std::size_t equal = 0;
    for (std::size_t i = 0; i < file->catalog().tensors.size(); ++i) {
      const TensorInfo& wanted = file->catalog().tensors[i];
      const auto at = std::ranges::find_if(tensors, [&](const TensorInfo& tensor) {
        return tensor.fqn == wanted.fqn && tensor.state == state::kFp32;
      });
      ASSERT_NE(at, tensors.end()) << wanted.fqn;
      EXPECT_EQ(at->shape, wanted.shape) << wanted.fqn;
      EXPECT_EQ(read_all(*hub, static_cast<std::size_t>(at - tensors.begin())), read_all(*file, i));
      ++equal;
    }
    EXPECT_EQ(equal * 3, tensors.size());  // the moments are cut as the weights are
  }
}

/// The Trainer of transformers 5.23 passes the tensors of model.safetensors to load_state_dict(),
/// which takes the names of the module only.
TEST_F(TrainerFolder, OfExpertsIsWrittenWithTheNamesOfTheModule) {
  for (const char* name : {"qwen3_moe", "mixtral"}) {
    const Path work = temp_.path() / name;
    const auto source = open_source(posix_storage(), kFolders / name);
    Output native, back;
    native.format = "native";
    native.tag = "t";
    back.format = "trainer";
    back.side_files = {{"config.json", text_of(kFolders / name / "config.json")}};
    const auto stored = copy_of(*source, work / "native", {}, native);
    for (const auto& [layout, folder] :
         {std::pair{Json(), work / "back"}, {source->layout(), work / "itself"}}) {
      const auto again = copy_of(layout.is_null() ? *stored : *source, folder, layout, back);
      EXPECT_EQ(again->catalog().groups, source->catalog().groups);
      expect_same_tensors(*source, *again);
      const auto file = open_source(posix_storage(), folder / "model.safetensors");
      EXPECT_THAT(tensor_labels(file->catalog()),
                  testing::Contains(kLayer + "mlp.experts.gate_up_proj [weights]"));
    }
  }
}

TEST_F(TrainerFolder, WithoutOneExpertHasTheTensorsOfItsFile) {
  const auto whole = open_source(posix_storage(), kFolders / "qwen3_moe/model.safetensors");
  const Path folder = copied("qwen3_moe");
  fs::remove(folder / "model.safetensors");
  Catalog catalog = whole->catalog();
  CopyPlan plan{.source = whole.get(), .target = &catalog, .tensor_map = {}};
  std::erase_if(catalog.tensors, [](const TensorInfo& tensor) {
    return tensor.fqn.find("experts.1.up_proj") != std::string::npos;
  });
  for (std::size_t i = 0; i < whole->catalog().tensors.size(); ++i) {
    if (whole->catalog().tensors[i].fqn.find("experts.1.up_proj") == std::string::npos)
      plan.tensor_map.push_back(i);
  }
  Output output;
  output.format = "safetensors";
  output.path = folder / "model.safetensors";
  const auto sink = make_sink(posix_storage(), output, catalog);
  copy(plan, *sink, {});
  sink->commit();
  const auto source = open_source(posix_storage(), folder);
  EXPECT_EQ(source->catalog().groups[0]["params"][0], "state.0");
  EXPECT_THAT(tensor_labels(source->catalog()),
              testing::Contains(HasSubstr("mlp.experts.1.gate_proj.weight")));
}

TEST(FusedParameters, AreTakenApartAndJoinedByTheSameRule) {
  const auto fused = FusedParameters::of("mixtral");
  ASSERT_TRUE(fused);
  const auto parts = fused->parts("model.layers.3.mlp.experts.gate_up_proj", {2, 6, 5});
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[1].name, "model.layers.3.block_sparse_moe.experts.0.w3.weight");
  EXPECT_EQ(parts[1].shape, (Shape{3, 5}));
  EXPECT_EQ(parts[1].range, (ElementRange{15, 30}));
  std::vector<ShapedName> files;
  for (const FilePart& part : parts) files.push_back({part.name, part.shape});
  const auto places = fused->places(files);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    ASSERT_TRUE(places[i]);
    EXPECT_EQ(places[i]->parameter, "model.layers.3.mlp.experts.gate_up_proj");
    EXPECT_EQ(places[i]->shape, (Shape{2, 6, 5}));
    EXPECT_EQ(places[i]->box.offsets, (Shape{i / 2, i % 2 * 3, 0}));
  }
  // Not whole parts of a name, an odd half, experts of another number, or of another shape.
  EXPECT_TRUE(fused->parts("model.my_mlp.experts.gate_up_proj", {2, 6, 5}).empty());
  EXPECT_TRUE(fused->parts("mlp.experts.gate_up_proj", {2, 5, 5}).empty());
  EXPECT_TRUE(fused->parts("mlp.experts.gate_up_proj", {std::uint64_t{1} << 40, 2, 1}).empty());
  files[3].name = "model.layers.3.block_sparse_moe.experts.01.w3.weight";
  EXPECT_FALSE(fused->places(files)[0]);
  files[3] = {parts[3].name, {5, 3}};
  EXPECT_FALSE(fused->places(files)[0]);
  EXPECT_FALSE(FusedParameters::of("llama"));
  EXPECT_FALSE(FusedParameters::of("qwen3"));
  EXPECT_FALSE(FusedParameters::of(""));
}

/// The names are those that save_pretrained() of transformers 5.23 writes.
TEST(FusedParameters, HaveTheNamesThatEachTypeHasInFiles) {
  struct Row {
    std::string type, parameter;
    Shape shape;
    std::string first, last;
  };
  const std::string layer = "model.layers.1.";
  const std::vector<Row> rows = {
      {"granitemoe",
       "block_sparse_moe.experts.gate_up_proj",
       {2, 6, 5},
       "model.layers.1.block_sparse_moe.input_linear.weight",
       ""},
      {"granitemoeshared",
       "block_sparse_moe.experts.down_proj",
       {2, 5, 3},
       "model.layers.1.block_sparse_moe.output_linear.weight",
       ""},
      {"granitemoehybrid",
       "block_sparse_moe.router.weight",
       {2, 5},
       "model.layers.1.block_sparse_moe.router.layer.weight",
       ""},
      {"jamba",
       "feed_forward.experts.gate_up_proj",
       {2, 6, 5},
       "model.layers.1.feed_forward.experts.0.gate_proj.weight",
       "model.layers.1.feed_forward.experts.1.up_proj.weight"},
      {"ernie4_5_moe",
       "mlp.experts.down_proj",
       {2, 5, 3},
       "model.layers.1.mlp.experts.0.down_proj.weight",
       "model.layers.1.mlp.experts.1.down_proj.weight"},
      {"ernie4_5_moe",
       "mlp.gate.moe_statics.e_score_correction_bias",
       {1, 2},
       "model.layers.1.mlp.moe_statics.e_score_correction_bias",
       ""},
      {"minimax",
       "mlp.experts.gate_up_proj",
       {2, 6, 5},
       "model.layers.1.block_sparse_moe.experts.0.w1.weight",
       "model.layers.1.block_sparse_moe.experts.1.w3.weight"},
      {"nemotron_h",
       "mixer.experts.up_proj",
       {2, 3, 5},
       "backbone.layers.1.mixer.experts.0.up_proj.weight",
       "backbone.layers.1.mixer.experts.1.up_proj.weight"},
      {"nemotron_h", "mixer.gate.weight", {2, 5}, "backbone.layers.1.mixer.gate.weight", ""},
      {"qwen3_5_moe_text",
       "mlp.experts.gate_up_proj",
       {2, 6, 5},
       "model.layers.1.mlp.experts.0.gate_proj.weight",
       "model.layers.1.mlp.experts.1.up_proj.weight"}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.type + " " + row.parameter);
    const auto fused = FusedParameters::of(row.type);
    ASSERT_TRUE(fused);
    const auto parts = fused->parts(layer + row.parameter, row.shape);
    ASSERT_FALSE(parts.empty());
    EXPECT_EQ(parts.front().name, row.first);
    EXPECT_EQ(parts.back().name, row.last.empty() ? row.first : row.last);
    EXPECT_EQ(fused->are_experts(layer + row.parameter),
              row.parameter.find("experts.") != std::string::npos);
    std::vector<ShapedName> files;
    for (const FilePart& part : parts) files.push_back({part.name, part.shape});
    for (const auto& place : fused->places(files)) {
      ASSERT_TRUE(place);
      EXPECT_EQ(place->parameter, layer + row.parameter);
      EXPECT_EQ(place->shape, row.shape);
    }
  }
}

TEST(FusedParameters, OfExpertsThatAreNotAllThereAreNotRenamed) {
  const auto fused = FusedParameters::of("nemotron_h");
  const auto places = fused->places(std::vector<ShapedName>{
      {"backbone.layers.1.mixer.experts.1.up_proj.weight", {3, 5}}, {"lm_head.weight", {4, 5}}});
  EXPECT_FALSE(places[0]);
  EXPECT_FALSE(places[1]);
}

TEST(ModelType, ClassesMayHaveUnderscores) {
  EXPECT_TRUE(is_known_class("ernie4_5_moe", "Ernie4_5_MoeForCausalLM"));
  EXPECT_TRUE(is_known_class("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"));
  EXPECT_TRUE(is_known_class("gemma3_text", "Gemma3TextForSequenceClassification"));
  EXPECT_FALSE(is_known_class("gemma3", "Gemma3TextModel"));
  EXPECT_FALSE(is_known_class("qwen3_5_moe_text", "MyQwen3_5MoeForCausalLM"));
}

TEST_F(TrainerFolder, OfAnUnknownModelKeepsTheNumbersOfItsStates) {
  const Path folder = copied("llama");
  test::write_file(folder / "config.json", R"({"model_type": "mine"})");
  const auto source = open_source(posix_storage(), folder);
  EXPECT_EQ(source->catalog().groups[1]["params"], Json({"state.9", "state.10", "state.11"}));
  EXPECT_THAT(source->remarks(),
              ElementsAre(HasSubstr("12 parameters have numbers, and nothing tells")));
  // Without its layout, as from another format.
  const auto again = copy_of(*source, temp_.path() / "again", {});
  EXPECT_EQ(again->catalog().groups, source->catalog().groups);
  expect_same_tensors(*source, *again);
}

/// A config.json that is cut off does not go with the result, whose states must not get names then.
TEST_F(TrainerFolder, WithADamagedConfigurationKeepsTheNumbersOfItsStates) {
  const Path folder = copied("llama");
  test::write_file(folder / "config.json", R"({"model_type": )");
  const auto source = open_source(posix_storage(), folder);
  EXPECT_EQ(source->catalog().groups[0]["params"][0], "state.0");
  expect_same_tensors(*source, *copy_of(*source, temp_.path() / "again", source->layout()));
}

/// The Trainer of transformers 5 resumes from such a folder without the tensors that it renames.
TEST_F(TrainerFolder, OfATypeThatTransformersRenamesSaysSo) {
  const Path folder = copied("llama");
  const auto remarks = [&](const char* config) {
    test::write_file(folder / "config.json", config);
    return open_source(posix_storage(), folder)->remarks();
  };
  EXPECT_THAT(remarks(R"({"model_type": "qwen2_5_vl", "transformers_version": "5.23.0"})"),
              testing::Contains(HasSubstr("names of the hub, such as \"model.norm.weight")));
  for (const char* config : {R"({"model_type": "qwen2_5_vl", "transformers_version": "4.57.1"})",
                             R"({"model_type": "llama", "transformers_version": "5.23.0"})",
                             R"({"model_type": "vit", "transformers_version": "5.23.0"})",
                             R"({"model_type": 5, "transformers_version": 5})", "[]", "{"})
    EXPECT_THAT(remarks(config), Not(testing::Contains(HasSubstr("names of the hub")))) << config;
}

TEST_F(TrainerFolder, OfAClassOfItsOwnKeepsTheNumbersOfItsStates) {
  const Path folder = copied("llama");
  const auto first_name = [&](const char* config) {
    test::write_file(folder / "config.json", config);
    return open_source(posix_storage(), folder)->catalog().groups[0]["params"][0];
  };
  EXPECT_EQ(first_name(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})"),
            Json("model.embed_tokens.weight"));
  EXPECT_EQ(first_name(R"({"model_type": "llama", "architectures": ["SwapLlama"]})"),
            Json("state.0"));
  EXPECT_EQ(first_name(R"({"model_type": "llama", "auto_map": {}})"), Json("state.0"));
  for (const auto& [type, name] : {std::pair{"gpt_neox", "GPTNeoXForCausalLM"},
                                   {"xlm-roberta", "XLMRobertaModel"},
                                   {"gemma3_text", "Gemma3ForCausalLM"},
                                   {"gpt2", "GPT2LMHeadModel"}})
    EXPECT_TRUE(is_known_class(type, name)) << name;
  EXPECT_FALSE(is_known_class("llama", "LlamaForCausalLMWithMore"));
  EXPECT_FALSE(is_known_class("llama", "Llam"));
}

TEST(TrainerOrder, OfAScriptsOwnGroupsIsNotAssumed) {
  const std::vector<dcp::NamedShape> model = {{"model.layers.0.input_layernorm.weight", {4}},
                                              {"model.layers.1.input_layernorm.weight", {4}}};
  const dcp::NumberedParameters one_group = {.numbers = {"0", "1"},
                                             .groups = {{Shape{4}, Shape{4}}}};
  for (const bool is_file_order : {false, true}) {
    trainer::OrderSource source{.is_file_order = is_file_order, .model_type = "llama"};
    EXPECT_FALSE(trainer::name_parameters(source, one_group, model));
    source.is_assumed = true;
    EXPECT_TRUE(trainer::name_parameters(source, one_group, model));
  }
}

TEST_F(TrainerFolder, IsWrittenAgainAsItWas) {
  for (const char* name : {"llama", "adapter"}) {
    const auto source = open_source(posix_storage(), kFolders / name);
    Output output;
    if (std::string(name) == "adapter") output.stem = kAdapterStem;
    const auto again = copy_of(*source, temp_.path() / name, source->layout(), output);
    EXPECT_EQ(again->layout(), source->layout());
    expect_same_tensors(*source, *again);
  }
}

TEST_F(TrainerFolder, MadeOfAnotherFormatHasTheWholeCatalog) {
  const auto source = open_source(posix_storage(), kFolders / "llama");
  for (const char* format : {"trainer", "accelerate"}) {
    Output output;
    output.format = format;
    const auto again = copy_of(*source, temp_.path() / format, {}, output);
    EXPECT_EQ(again->format(), format);
    EXPECT_EQ(again->catalog().groups, source->catalog().groups);
    EXPECT_EQ(again->catalog().scheduler, source->catalog().scheduler);
    EXPECT_EQ(again->catalog().step, 2);
    expect_same_tensors(*source, *again);
    EXPECT_THAT(again->remarks(), testing::IsEmpty());  // the groups list the names
  }
  EXPECT_TRUE(fs::exists(temp_.path() / "trainer/trainer_state.json"));
  EXPECT_FALSE(fs::exists(temp_.path() / "accelerate/trainer_state.json"));
}

TEST_F(TrainerFolder, OfAnAdapterHasTheNamesOfItsModules) {
  const auto source = open_source(posix_storage(), kFolders / "adapter");
  EXPECT_EQ(source->catalog().groups[0]["params"],
            Json({"base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
                  "base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight",
                  "base_model.model.model.layers.0.self_attn.v_proj.lora_A.default.weight",
                  "base_model.model.model.layers.0.self_attn.v_proj.lora_B.default.weight",
                  "base_model.model.lm_head.modules_to_save.default.weight"}));
}

TEST_F(TrainerFolder, ModelIsSplitAtTheLargestFile) {
  const auto source = open_source(posix_storage(), kFolders / "llama");
  Output output;
  output.max_shard_bytes = 400;
  const auto again = copy_of(*source, temp_.path() / "split", source->layout(), output);
  EXPECT_TRUE(fs::exists(temp_.path() / "split/model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(temp_.path() / "split/model.safetensors"));
  expect_same_tensors(*source, *again);
}

TEST_F(TrainerFolder, WhoseIndexListsATensorThatIsGoneIsDamaged) {
  const auto source = open_source(posix_storage(), kFolders / "llama");
  Output output;
  output.max_shard_bytes = 400;
  copy_of(*source, temp_.path() / "split", source->layout(), output);
  const Path index = temp_.path() / "split/model.safetensors.index.json";
  SortedJson json = parse_sorted_json(read_text(posix_storage(), index, 1 << 20), "index");
  json["weight_map"]["gone.weight"] = json["weight_map"]["lm_head.weight"];
  test::write_file(index, json.dump());
  const auto error = test::error_of([&] { open_source(posix_storage(), temp_.path() / "split"); });
  EXPECT_EQ(error.code(), ErrorCode::Corrupt);
  EXPECT_THAT(error.what(), HasSubstr("gone.weight"));
}

/// Two shards of torch.save with an index, beside an optimizer without states.
class ShardedTrainerFolder : public TrainerFolder {
 protected:
  void SetUp() override {
    const Made two{DType::Float32, {2}, {1, 2}};
    save_torch(folder_ / kShards[0], {{"a.weight", tensor("a")}}, {{"a", two}});
    save_torch(folder_ / kShards[1], {{"b.weight", tensor("b")}, {"c.weight", tensor("c")}},
               {{"b", two}, {"c", two}});
    save_torch(folder_ / "optimizer.pt",
               {{"state", Json::object()},
                {"param_groups", {{{"lr", 0.1}, {"params", Json::array({0, 1, 2})}}}}},
               {});
    list({{"a.weight", kShards[0]}, {"b.weight", kShards[1]}, {"c.weight", kShards[1]}});
  }
  void list(const Json& weight_map) const {
    test::write_file(folder_ / "pytorch_model.bin.index.json",
                     Json{{"weight_map", weight_map}}.dump());
  }
  std::unique_ptr<Source> open() const { return open_source(posix_storage(), folder_); }

  static constexpr std::array<const char*, 2> kShards = {"pytorch_model-00001-of-00002.bin",
                                                         "pytorch_model-00002-of-00002.bin"};
  const Path folder_ = temp_.path();
};

TEST_F(ShardedTrainerFolder, IsComparedWithItsIndex) {
  const auto of_index = testing::Contains(HasSubstr("index.json"));
  ASSERT_EQ(open()->format(), "trainer");
  EXPECT_THAT(lines_of(open()->losses()), testing::Not(of_index));
  EXPECT_THAT(open()->remarks(), testing::Not(of_index));
  list({{"a.weight", kShards[0]}, {"b.weight", kShards[0]}, {"c.weight", kShards[1]}});
  EXPECT_THAT(open()->remarks(), testing::Contains(HasSubstr("b.weight (pytorch_model-00002")));
  list({{"a.weight", kShards[0]}, {"c.weight", kShards[1]}});
  EXPECT_THAT(open()->remarks(),
              testing::Contains(HasSubstr("does not list all tensors of its files, and these are "
                                          "read too: b.weight (pytorch_model-00002")));
  list({{"a.weight", kShards[0]}, {"b.weight", kShards[1]}, {"gone.weight", kShards[1]}});
  EXPECT_THAT(test::error_of([&] { open(); }),
              test::Fails(ErrorCode::Corrupt, {"index.json", "gone.weight"}));
}

TEST_F(ShardedTrainerFolder, WithAValueInATensorsPlaceLacksTheTensor) {
  const Made two{DType::Float32, {2}, {1, 2}};
  fs::remove(folder_ / kShards[1]);
  save_torch(folder_ / kShards[1],
             {{"b.weight", Json::array({tensor("b")})}, {"c.weight", tensor("c")}},
             {{"b", two}, {"c", two}});
  const Losses losses = open()->losses();
  const auto lost = std::ranges::find(losses, "b.weight", &Loss::name);
  ASSERT_NE(lost, losses.end());
  EXPECT_TRUE(lost->role == Role::Weight && lost->is_broken);
}

/// An optimizer with numbers may train a module that the Trainer does not save. Whether it is that,
/// or a weight is missing, is known where config.json tells all that the model has.
TEST_F(TrainerFolder, WithAWholeModelLacksNoneOfTheParametersOfItsOptimizer) {
  const Path& folder = temp_.path();
  std::vector<std::string> names = {"model.embed_tokens.weight", "model.norm.weight",
                                    "lm_head.weight"};
  for (const char* layer : {"0", "1"}) {
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      names.push_back(fmt::format("model.layers.{}.{}.weight", layer, norm));
  }
  std::map<std::string, Made> rows = {{"state", {DType::Float32, {1, 2}, {1, 2}}}};
  for (const std::string& name : names) rows[name] = rows["state"];
  Json states = Json::array(), numbers = Json::array();
  for (std::size_t i = 0; i <= names.size(); ++i) {  // one more than the model has
    states.push_back(Json::array({i, {{"exp_avg", tensor("state")}}}));
    numbers.push_back(i);
  }
  save_torch(folder / "optimizer.pt",
             {{"state", {{"$type", "builtins.dict"}, {"pairs", states}}},
              {"param_groups", Json::array({{{"lr", 0.1}, {"params", numbers}}})}},
             rows);
  test::write_file(folder / "trainer_state.json", R"({"global_step": 2})");
  const auto lost = [&](const std::vector<std::string>& held, const char* type) {
    Json model = Json::object();
    for (const std::string& name : held) model[name] = tensor(name);
    fs::remove(folder / "pytorch_model.bin");
    save_torch(folder / "pytorch_model.bin", model, rows);
    test::write_file(folder / "config.json",
                     Json{{"model_type", type}, {"num_hidden_layers", 2}}.dump());
    const auto source = open_source(posix_storage(), folder);
    const bool is_said = std::ranges::any_of(source->remarks(), [](const std::string& line) {
      return line.find("is of another module") != line.npos;
    });
    const bool is_lost = std::ranges::any_of(
        source->losses(), [](const Loss& loss) { return loss.role == Role::Weight; });
    EXPECT_NE(is_said, is_lost);
    return is_lost;
  };
  EXPECT_FALSE(lost(names, "llama"));
  EXPECT_TRUE(lost(names, "one_that_nobody_knows"));
  for (std::size_t i = 1; i < names.size(); ++i) {  // one of the embeddings is enough
    std::vector<std::string> held = names;
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_EQ(lost(held, "llama"), names[i] != "lm_head.weight") << names[i];
  }
}

TEST_F(TrainerFolder, WhoseProgressCannotBeReadSaysSo) {
  const Path folder = copied("llama");
  test::write_file(
      folder / "trainer_state.json",
      R"({"log_history": [{"loss": NaN, "text": "NaN \" Infinity"}, -Infinity], "global_step": 40})");
  EXPECT_EQ(open_source(posix_storage(), folder)->catalog().data_position["global_steps"], 40);
  for (const char* broken : {"{\"global_step\": ", "{\"global_step\": -1}", "[]", "\""}) {
    test::write_file(folder / "trainer_state.json", broken);
    const auto source = open_source(posix_storage(), folder);
    EXPECT_TRUE(source->catalog().data_position.is_null()) << broken;
    EXPECT_THAT(notes_of(*source), ElementsAre(HasSubstr("trainer_state.json"))) << broken;
  }
}

TEST_F(TrainerFolder, WhoseOptimizerIsAPointerOfGitLfsSaysHowToGetIt) {
  const Path folder = copied("llama");
  fs::remove(folder / "optimizer.pt");
  test::write_file(folder / "optimizer.pt", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_THAT(lines_of(open_source(posix_storage(), folder)->losses()),
              testing::Contains(HasSubstr("run `git lfs pull`")));
}

TEST_F(TrainerFolder, FromADiskOfMacOsHasNoOtherModels) {
  const Path folder = copied("llama");
  for (const char* name : {"model.safetensors", "optimizer.pt", "config.json"})
    test::write_file(folder / fmt::format("._{}", name), std::string("\0\5\x16\7", 4));
  EXPECT_THAT(notes_of(*open_source(posix_storage(), folder)), testing::IsEmpty());
}

TEST_F(TrainerFolder, WithoutItsModelSaysWhichFileIsMissing) {
  const Path folder = copied("llama");
  fs::remove(folder / "model.safetensors");
  EXPECT_THAT(probe(posix_storage(), folder).problem,
              HasSubstr("model.safetensors, pytorch_model.bin or adapter_model.safetensors is "
                        "missing beside it"));
  fs::copy(kFolders / "adapter", folder / "second");
  fs::remove(folder / "second/optimizer.pt");
  EXPECT_THAT(probe(posix_storage(), folder).problem,
              HasSubstr("name one of them, second (optimizer.pt is beside them"));
}

TEST_F(TrainerFolder, OfOneProcessHasAStateOfRandomGeneratorsWithoutANumber) {
  EXPECT_FALSE(trainer::has_one_process(posix_storage(), temp_.path()));
  test::write_file(temp_.path() / "rng_state.pth", "");
  EXPECT_TRUE(trainer::has_one_process(posix_storage(), temp_.path()));
  test::write_file(temp_.path() / "rng_state_0.pth", "");
  EXPECT_FALSE(trainer::has_one_process(posix_storage(), temp_.path()));
}

TEST_F(TrainerFolder, WithAnotherModelThanItsEmbeddedCatalogIsReadWithoutIt) {
  const auto source = open_source(posix_storage(), kFolders / "llama");
  copy_of(*source, temp_.path() / "ours", {});
  copy_of(*open_source(posix_storage(), kFolders / "adapter"), temp_.path() / "other", {});
  fs::copy_file(temp_.path() / "other/model.safetensors", temp_.path() / "ours/model.safetensors",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(notes_of(*open_source(posix_storage(), temp_.path() / "ours")),
              testing::Contains(HasSubstr("unishard.catalog of the optimizer's file")));
}

/// Two adapters, of which the optimizer has trained that of the golden folder. The other has other
/// shapes, as of another rank.
class TwoAdapters : public TrainerFolder {
 protected:
  /// Moves the trained adapter to `place`, and another to `other`.
  void arrange(const Path& place, const Path& other) const {
    const Path file = folder_ / "adapter_model.safetensors", kept = temp_.path() / "kept";
    fs::rename(file, kept);
    fs::create_directories(folder_ / other);
    fs::create_directories(folder_ / place);
    save_torch(folder_ / other / "adapter_model.bin", {{"x.lora_A.weight", tensor("x")}},
               {{"x", {DType::Float32, {3}, {1, 2, 3}}}});
    fs::rename(kept, folder_ / place / "adapter_model.safetensors");
    if (!place.empty() && !other.empty()) fs::remove(folder_ / "adapter_config.json");
  }
  const Path folder_ = copied("adapter");
};

TEST_F(TwoAdapters, OneAtTheTopAndTrainedIsTheModel) {
  const auto alone = open_source(posix_storage(), kFolders / "adapter");
  arrange("", "aux");
  const auto source = open_source(posix_storage(), folder_);
  EXPECT_EQ(source->catalog().groups, alone->catalog().groups);
  expect_same_tensors(*alone, *source);
  EXPECT_THAT(notes_of(*source),
              testing::Contains(HasSubstr("left out: file of other weights \"aux/")));
}

TEST_F(TwoAdapters, OneInAFolderAndTrainedIsTheModel) {
  const auto alone = open_source(posix_storage(), kFolders / "adapter");
  for (const Path& other : {Path(), Path("one")}) {
    arrange("aux", other);
    const auto source = open_source(posix_storage(), folder_);
    EXPECT_EQ(source->catalog().groups, alone->catalog().groups);
    expect_same_tensors(*alone, *source);
    EXPECT_THAT(notes_of(*source),
                testing::Contains(HasSubstr("file of other weights \"" +
                                            (other / "adapter_model.bin").string())));
    EXPECT_THAT(source->remarks(), testing::Contains(HasSubstr("called \"aux\" in the run")));
    fs::rename(folder_ / "aux/adapter_model.safetensors", folder_ / "adapter_model.safetensors");
    fs::remove(folder_ / other / "adapter_model.bin");
  }
}

/// Nothing else is taken in its place.
TEST_F(TwoAdapters, OneThatWasTrainedAndIsDamagedIsAnError) {
  for (const Path& other : {Path(), Path("one")}) {
    arrange("aux", other);
    const Path file = folder_ / "aux/adapter_model.safetensors";
    test::write_file(folder_ / "aux/adapter_config.json", "{}");
    const std::string whole = test::read_file(file);
    test::write_file(file, whole.substr(0, whole.size() / 2));
    EXPECT_THAT(test::error_of([&] { open_source(posix_storage(), folder_); }),
                test::Fails(ErrorCode::Corrupt, "aux/adapter_model.safetensors"));
    fs::remove(file);
    EXPECT_THAT(test::error_of([&] { open_source(posix_storage(), folder_); }).what(),
                HasSubstr("aux"));
    test::write_file(folder_ / "adapter_model.safetensors", whole);
    fs::remove(folder_ / other / "adapter_model.bin");
  }
}

TEST_F(TwoAdapters, OfTheSameShapesAreDoubted) {
  arrange("aux", "one");
  fs::copy(folder_ / "aux", folder_ / "two");
  EXPECT_THAT(test::error_of([&] { open_source(posix_storage(), folder_); }),
              test::Fails(ErrorCode::Unsupported, {"aux, one, two", "the shapes of several"}));
  fs::rename(folder_ / "two/adapter_model.safetensors", folder_ / "adapter_model.safetensors");
  const auto source = open_source(posix_storage(), folder_);
  EXPECT_THAT(source->remarks(),
              testing::Contains(HasSubstr("the adapter aux too, which has the same shapes")));
}

TEST_F(TwoAdapters, WithoutAnOptimizerThatTellsAreDoubted) {
  arrange("aux", "one");
  test::write_file(folder_ / "optimizer.pt", "");
  EXPECT_THAT(test::error_of([&] { open_source(posix_storage(), folder_); }),
              test::Fails(ErrorCode::Unsupported, {"aux, one", "no states of the optimizer can"}));
}

TEST_F(TwoAdapters, OfOtherShapesThanTheStatesAreDoubted) {
  arrange("aux", "one");
  fs::remove_all(folder_ / "aux");
  fs::copy(folder_ / "one", folder_ / "two");
  EXPECT_THAT(test::error_of([&] { open_source(posix_storage(), folder_); }),
              test::Fails(ErrorCode::Unsupported, {"one, two", "the shapes of none"}));
  fs::rename(folder_ / "two/adapter_model.bin", folder_ / "adapter_model.bin");
  EXPECT_THAT(open_source(posix_storage(), folder_)->remarks(),
              testing::Contains(HasSubstr("of no adapter here alone")));
}

TEST_F(TrainerFolder, OfACompiledModelKeepsTheNamesInItsFile) {
  const std::vector<std::vector<std::string>> models = {
      {"_orig_mod.a.weight", "_orig_mod.b.bias"},
      {"layers.0._orig_mod.a.weight", "layers.1._orig_mod.a.weight", "head.weight"}};
  for (std::size_t m = 0; m < models.size(); ++m) {
    const Path work = temp_.path() / std::to_string(m), folder = work / "in";
    fs::create_directories(folder);
    Json model = Json::object(), numbers = Json::array();
    std::map<std::string, Made> tensors;
    for (const std::string& name : models[m]) {
      model[name] = tensor(name);
      tensors[name] = {DType::Float32, {1}, {static_cast<float>(tensors.size())}};
      numbers.push_back(numbers.size());
    }
    save_torch(folder / "pytorch_model.bin", model, tensors);
    save_torch(folder / "optimizer.bin",
               {{"state", Json::object()},
                {"param_groups", Json::array({{{"lr", 0.5}, {"params", numbers}}})}},
               {});
    Output output, back;
    output.format = "native";
    output.tag = "t";
    back.format = "accelerate";
    const auto stored = copy_of(*open_source(posix_storage(), folder), work / "native", {}, output);
    EXPECT_FALSE(stored->catalog().tensors[0].fqn.find("_orig_mod") != std::string::npos);
    const auto again = copy_of(*stored, work / "back", {}, back);
    EXPECT_THAT(notes_of(*again), testing::IsEmpty());
    expect_same_tensors(*stored, *again);
    std::vector<std::string> found;
    const auto file = open_source(posix_storage(), work / "back/model.safetensors");
    Catalog named = file->catalog();
    wrap_names(named, "safetensors");
    for (const TensorInfo& each : named.tensors) found.push_back(each.fqn);
    EXPECT_THAT(found, testing::UnorderedElementsAreArray(models[m]));
    // A Trainer's files have the names of the model that is not compiled.
    back.format = "trainer";
    copy_of(*stored, work / "trainer", {}, back);
    const auto plain = open_source(posix_storage(), work / "trainer/model.safetensors");
    EXPECT_THAT(tensor_labels(plain->catalog()), testing::Each(testing::Not(HasSubstr("_orig"))));
  }
}

void write_deepspeed(const Source& source, const Catalog& catalog, const Path& folder) {
  Output output;
  output.format = "deepspeed";
  output.path = folder;
  output.tag = "t";
  const auto sink = make_sink(posix_storage(), output, catalog);
  CopyPlan plan{.source = &source, .target = &catalog, .tensor_map = {}};
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) plan.tensor_map.push_back(i);
  copy(plan, *sink, {});
  sink->commit();
}

TEST_F(TrainerFolder, LeavesItsRecordsInDeepSpeedsFiles) {
  const auto source = open_source(posix_storage(), kFolders / "adapter");
  Catalog catalog = source->catalog();
  catalog.producer["compiled_modules"] = {{"accelerate", {"layers.0"}}};
  write_deepspeed(*source, catalog, temp_.path() / "deepspeed");
  const auto read = open_source(posix_storage(), temp_.path() / "deepspeed");
  EXPECT_EQ(read->catalog().producer["adapter_names"], "modules");
  EXPECT_EQ(read->catalog().producer["compiled_modules"], catalog.producer["compiled_modules"]);
}

TEST_F(TrainerFolder, OfDeepSpeedIsListedAsSuchWhateverTheModelIsIn) {
  const auto source = open_source(posix_storage(), kFolders / "llama");
  const Path run = temp_.path() / "run";
  fs::create_directory(run);
  write_deepspeed(*source, source->catalog(), run / "checkpoint-3");
  fs::copy_file(kFolders / "llama/model.safetensors", run / "checkpoint-3/model.safetensors");
  const auto folders = list_sub_folders(posix_storage(), run);
  ASSERT_EQ(folders.size(), 1u);
  EXPECT_EQ(folders[0].format, "deepspeed");
}

/// The trained name is neither the first in the file nor the first by the alphabet.
TEST_F(TrainerFolder, OfATiedWeightHasItsTrainedNameAndItsStates) {
  const std::map<std::string, Made> tensors = {
      {"w", {DType::Float32, {3}, {1, 2, 3}}},
      {"copy", {DType::Float32, {3, 2}, {1, 2, 3, 4, 5, 6}}},
      {"tied", {DType::Float32, {3, 2}, {1, 2, 3, 4, 5, 6}}}};
  for (const char* first : {"tied", "copy"}) {
    for (const char* optimizer : {"optimizer.bin", "optimizer.pt"}) {
      const Path folder = temp_.path() / fmt::format("{}-{}", first, optimizer);
      fs::create_directory(folder);
      save_torch(folder / "pytorch_model.bin",
                 {{"head.weight", tensor(first)},
                  {"wte.weight", tensor("tied")},
                  {"norm.weight", tensor("w")}},
                 tensors);
      save_torch(
          folder / optimizer,
          {{"state",
            {{"$type", "builtins.dict"},
             {"pairs", Json::array({Json::array({0, {{"exp_avg", tensor("tied")}}}),
                                    Json::array({1, {{"exp_avg", tensor("w")}}})})}}},
           {"param_groups", Json::array({{{"lr", 0.5},
                                          {"params", {0, 1}},
                                          {"param_names", {"wte.weight", "norm.weight"}}}})}},
          tensors);
      const auto source = open_source(posix_storage(), folder);
      const std::string trained = first == std::string_view("tied") ? "head.weight" : "wte.weight";
      EXPECT_EQ(source->catalog().groups[0]["params"], Json({trained, "norm.weight"})) << folder;
      const auto copy = copy_of(*source, folder.string() + "-copy", source->layout());
      expect_same_tensors(*source, *copy);
      EXPECT_THAT(tensor_labels(source->catalog()),
                  testing::Contains(fmt::format("{} [exp_avg]", trained)));
    }
  }
}

/// accelerate saves what DistributedDataParallel made of the model, which it does for several
/// processes. The Trainer saves the model, in which a module may have that name.
TEST_F(TrainerFolder, OfAReplicaHasTheNamesOfTheModel) {
  const Made two{DType::Float32, {2}, {1, 2}};
  struct Case {
    const char* optimizer;
    int processes;
    const char* expected;
  };
  for (const auto& [optimizer, processes, expected] :
       {Case{"optimizer.bin", 0, "a.weight "}, Case{"optimizer.bin", 1, "module.a.weight "},
        Case{"optimizer.bin", 2, "a.weight "}, Case{"optimizer.pt", 0, "module.a.weight "},
        Case{"optimizer.pt", 2, "module.a.weight "}}) {
    const Path folder = temp_.path() / fmt::format("{}-{}", optimizer, processes);
    fs::create_directory(folder);
    SideFiles states;
    for (int i = 0; i < processes; ++i)
      states.emplace_back(fmt::format("random_states_{}.pkl", i), "a state");
    for (const auto& [name, text] : states) replace_text(posix_storage(), folder / name, text);
    save_torch(folder / "pytorch_model.bin",
               {{"module.a.weight", tensor("a")}, {"module.z.weight", tensor("z")}},
               {{"a", two}, {"z", two}});
    save_torch(folder / optimizer,
               {{"state", with_number_keys({{"momentum_buffer", tensor("m")}})},
                {"param_groups", Json::array({{{"lr", 0.5}, {"params", {0, 1}}}})}},
               {{"m", two}});
    const auto source = open_source(posix_storage(), folder);
    EXPECT_THAT(tensor_labels(source->catalog()), testing::Contains(testing::StartsWith(expected)))
        << folder;
    Output beside;
    beside.side_files = states;
    const auto copy = copy_of(*source, folder.string() + "-copy", source->layout(), beside);
    expect_same_tensors(*source, *copy);
    expect_same_tensors(*source, *copy_of(*copy, folder.string() + "-new", {}));
  }
}

/// pytorch_model.bin has the order of the parameters, and the file of the copy sorts them.
TEST_F(TrainerFolder, WithAModelInOrderKeepsTheNamesOfItsStates) {
  const Path folder = temp_.path() / "ordered";
  fs::create_directory(folder);
  const Made two{DType::Float32, {2}, {1, 2}};
  save_torch(folder / "pytorch_model.bin",
             {{"z.weight", tensor("z")},
              {"a.weight", tensor("a")},
              {"n.num_batches_tracked", tensor("s")}},
             {{"z", two}, {"a", two}, {"s", {DType::Int64, {}, {}}}});
  save_torch(folder / "optimizer.bin",
             {{"state", with_number_keys({{"momentum_buffer", tensor("m")}})},
              {"param_groups", Json::array({{{"lr", 0.5}, {"params", {0, 1}}}})}},
             {{"m", two}});
  // A script with accelerate may give its optimizer the parameters in another order.
  EXPECT_EQ(open_source(posix_storage(), folder)->catalog().groups[0]["params"],
            Json({"state.0", "state.1"}));
  const auto source = open_source(posix_storage(), folder, OpenOptions{.assume_model_order = true});
  EXPECT_EQ(source->catalog().groups[0]["params"], Json({"z.weight", "a.weight"}));
  const auto again = copy_of(*source, temp_.path() / "again", source->layout());
  EXPECT_EQ(again->catalog().groups[0]["params"], source->catalog().groups[0]["params"]);
  expect_same_tensors(*source, *again);
}

/// A folder of accelerate with two models, whose optimizers have steps, schedules and momenta.
class TwoModels : public TrainerFolder {
 protected:
  TwoModels() {
    fs::create_directory(folder_);
    for (const char* name : {"", "_1"}) {
      const float one = *name == 0 ? 1.0F : 2.0F;
      save_torch(folder_ / fmt::format("pytorch_model{}.bin", name), {{"a", tensor("a")}},
                 {{"a", {DType::Float32, {2}, {one, 5}}}});
      save_torch(folder_ / fmt::format("optimizer{}.bin", name),
                 {{"state", with_number_keys({{"momentum_buffer", tensor("m")}})},
                  {"param_groups", Json::array({{{"lr", one}, {"params", Json::array({0})}}})}},
                 {{"m", {DType::Float32, {2}, {3 * one, 7}}}});
    }
  }

  /// Returns the content of the second model and of the second optimizer.
  static std::vector<std::vector<std::byte>> second_of(const Source& source) {
    std::vector<std::vector<std::byte>> found;
    for (std::size_t i = 0; i < source.catalog().tensors.size(); ++i) {
      if (source.catalog().tensors[i].state == "extra") found.push_back(read_all(source, i));
    }
    return found;
  }

  const Path folder_ = temp_.path() / "two";
};

TEST_F(TwoModels, HaveTheSecondOnesAsValues) {
  const auto source = open_source(posix_storage(), folder_);
  EXPECT_EQ(source->format(), "accelerate");
  EXPECT_THAT(tensor_labels(source->catalog()),
              testing::UnorderedElementsAre("a [fp32]", "a [momentum_buffer]", "model_1.a [extra]",
                                            "optimizer_1.state.0.momentum_buffer [extra]"));
  EXPECT_EQ(source->catalog().groups.size(), 1u);
  EXPECT_EQ(source->catalog().client_state["optimizer_1"]["param_groups"][0]["lr"], 2.0);
  EXPECT_THAT(source->remarks(), testing::Contains(HasSubstr("model_1, optimizer_1: kept")));
  EXPECT_THAT(notes_of(*source), testing::IsEmpty());
}

TEST_F(TrainerFolder, ParametersOfASecondOptimizerAreNotFrozen) {
  const Path folder = temp_.path() / "two_optimizers";
  fs::create_directory(folder);
  save_torch(folder / "pytorch_model.bin", {{"a", tensor("a")}, {"b", tensor("b")}},
             {{"a", {DType::Float32, {2}, {1, 2}}}, {"b", {DType::Float32, {3}, {3, 4, 5}}}});
  for (const auto& [name, size] : {std::pair{"optimizer.bin", 2U}, {"optimizer_1.bin", 3U}}) {
    save_torch(folder / name,
               {{"state", with_number_keys({{"momentum_buffer", tensor("m")}})},
                {"param_groups", Json::array({{{"lr", 0.5}, {"params", Json::array({0})}}})}},
               {{"m", {DType::Float32, {size}, std::vector<float>(size, 1)}}});
  }
  const auto is_frozen = [&] {
    const auto source = open_source(posix_storage(), folder);
    const auto found = source->catalog().find("b", state::kWeights);
    return found && source->catalog().tensors[*found].frozen;
  };
  EXPECT_FALSE(is_frozen());
  fs::remove(folder / "optimizer_1.bin");
  EXPECT_FALSE(is_frozen()) << "the only optimizer has numbers for one of two tensors";
  const OpenOptions in_order{.assume_model_order = true};
  const auto source = open_source(posix_storage(), folder, in_order);
  EXPECT_TRUE(source->catalog().tensors[*source->catalog().find("b", state::kWeights)].frozen);
}

TEST_F(TrainerFolder, WithNothingInAWeightsPlaceLacksIt) {
  const Path folder = temp_.path() / "emptied";
  fs::create_directory(folder);
  save_torch(
      folder / "pytorch_model.bin",
      {{"h.a", tensor("a")}, {"h.b", tensor("b")}, {"h.c", tensor("c")}, {"h.gone", nullptr}},
      {{"a", {DType::Float32, {2}, {1, 2}}},
       {"b", {DType::Float32, {3}, {3, 4, 5}}},
       {"c", {DType::Float32, {1}, {6}}}});
  save_torch(folder / "optimizer.bin",
             {{"state", with_number_keys({{"momentum_buffer", tensor("m")}})},
              {"param_groups", Json::array({{{"lr", 0.5}, {"params", Json::array({0})}}})}},
             {{"m", {DType::Float32, {2}, {1, 1}}}});
  const Losses losses = open_source(posix_storage(), folder)->losses();
  const auto found = std::ranges::find(losses, Role::Weight, &Loss::role);
  ASSERT_NE(found, losses.end());
  EXPECT_THAT(found->name, HasSubstr("h.gone"));
  EXPECT_THAT(found->why, HasSubstr("nothing (None) in the place of a tensor"));
}

TEST_F(TrainerFolder, WithoutItsFirstModelIsDamaged) {
  SKIP_WITHOUT_FIXTURES();
  const Path folder = temp_.path() / "second_alone";
  fs::create_directory(folder);
  fs::copy_file(test::fixtures() / "safetensors/hf_gpt2_single/checkpoint/model.safetensors",
                folder / "model_1.safetensors");
  save_torch(folder / "optimizer.bin",
             {{"state", with_number_keys({{"momentum_buffer", tensor("m")}})},
              {"param_groups", Json::array({{{"lr", 0.5}, {"params", Json::array({0})}}})}},
             {{"m", {DType::Float32, {2}, {1, 1}}}});
  EXPECT_THAT(test::error_of([&] { open_source(posix_storage(), folder); }),
              test::Fails(ErrorCode::Corrupt, {"model_1.safetensors", "the first"}));
}

/// The state of torch's LambdaLR.
const Json kSchedule = {{"base_lrs", Json::array({0.1})}, {"last_epoch", 3}};

/// SGD has no states, and so no steps: what lies beside it counts them.
TEST_F(TrainerFolder, OfAnOptimizerThatDoesNotCountHasTheStepsOfWhatDoes) {
  const auto steps_of = [&](const std::string& name, std::int64_t last_epoch, int processes) {
    const Path folder = temp_.path() / name;
    fs::create_directory(folder);
    save_torch(folder / "pytorch_model.bin", {{"a", tensor("a")}},
               {{"a", {DType::Float32, {2}, {1, 5}}}});
    save_torch(folder / "optimizer.bin",
               {{"state", Json::object()},
                {"param_groups", Json::array({{{"lr", 0.5}, {"params", Json::array({0})}}})}},
               {}, "optimizer");
    if (last_epoch > 0)
      save_torch(folder / "scheduler.bin",
                 {{"last_epoch", last_epoch}, {"_step_count", last_epoch + 1}}, {}, "scheduler");
    for (int i = 0; i < processes; ++i)
      test::write_file(folder / fmt::format("random_states_{}.pkl", i), "");
    const auto source = open_source(posix_storage(), folder);
    return std::pair(source->catalog().step, fmt::format("{}", fmt::join(source->remarks(), "\n")));
  };
  EXPECT_THAT(steps_of("alone", 4, 1), testing::Pair(4, HasSubstr("is that of the schedule")));
  EXPECT_THAT(steps_of("both", 8, 2), testing::Pair(4, HasSubstr("divided by its 2 processes")));
  EXPECT_THAT(steps_of("odd", 7, 2), testing::Pair(7, HasSubstr("is that of the schedule")));
  EXPECT_THAT(steps_of("step_6", 3, 1), testing::Pair(6, HasSubstr("the folder's name")));
  EXPECT_THAT(steps_of("checkpoint_2", 0, 1),
              testing::Pair(0, testing::Not(HasSubstr("does not count"))))
      << "the second save";
}

/// Schedule-free AdamW counts in its groups, and keeps one of Adam's moments.
TEST_F(TrainerFolder, OfAnOptimizerWithoutStepsGetsNone) {
  const Path folder = temp_.path() / "schedule_free";
  fs::create_directory(folder);
  save_torch(folder / "pytorch_model.bin", {{"a", tensor("a")}},
             {{"a", {DType::Float32, {2}, {1, 5}}}});
  const Made moment{DType::Float32, {2}, {3, 7}};
  save_torch(folder / "optimizer.bin",
             {{"state", with_number_keys({{"z", tensor("z")}, {"exp_avg_sq", tensor("sq")}})},
              {"param_groups", Json::array({{{"lr", 0.5},
                                             {"betas", Json::array({0.9, 0.999})},
                                             {"k", 4},
                                             {"params", Json::array({0})}}})}},
             {{"z", moment}, {"sq", moment}}, "optimizer");
  const auto source = open_source(posix_storage(), folder);
  for (const char* format : {"native", "dcp", "accelerate", "deepspeed", "deepspeed-universal"}) {
    Output output;
    output.format = format;
    output.tag = "t";
    const auto there = copy_of(*source, temp_.path() / format, {}, output);
    const auto back = copy_of(*there, temp_.path() / fmt::format("{}-back", format), {},
                              {.format = "accelerate", .path = {}, .tag = ""});
    EXPECT_EQ(OptimizerScalars(back->catalog()).step("a"), Json()) << format;
  }
}

TEST_F(TwoModels, OfWhichFilesAreSwappedLoseTheirStates) {
  const auto broken = [&] {
    std::map<std::string, Role> found;
    const auto source = open_source(posix_storage(), folder_);
    EXPECT_TRUE(source->catalog().find("a", state::kWeights) ||
                source->catalog().find("a", state::kFp32));
    for (const Loss& loss : source->losses()) {
      if (loss.is_broken) found.emplace(loss.name + " is " + loss.why, loss.role);
    }
    return found;
  };
  using Broken = std::map<std::string, Role>;
  for (const std::string name : {"optimizer.bin", "optimizer_1.bin"}) {
    fs::rename(folder_ / name, folder_ / "kept");
    save_torch(folder_ / name, kSchedule, {});
    EXPECT_EQ(broken(), (Broken{{name + " is the state of a schedule", Role::Optimizer}}));
    fs::remove(folder_ / name);
    fs::rename(folder_ / "kept", folder_ / name);
  }
  fs::copy_file(folder_ / "optimizer.bin", folder_ / "scheduler.bin");
  EXPECT_EQ(broken(), (Broken{{"scheduler.bin is the state of an optimizer", Role::Setting}}));
  fs::remove(folder_ / "scheduler.bin");
}

/// torch.save names the folder in an archive after the file.
TEST_F(TwoModels, OfWhichAFileWasWrittenAsAnotherLoseIt) {
  fs::remove(folder_ / "optimizer.bin");
  save_torch(
      folder_ / "optimizer.bin",
      {{"state", Json::object()}, {"param_groups", Json::array({{{"params", Json::array()}}})}}, {},
      "optimizer_1");
  const Losses losses = open_source(posix_storage(), folder_)->losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].name, "optimizer.bin");
  EXPECT_EQ(losses[0].why, "the file that was written as optimizer_1.bin");
  EXPECT_TRUE(losses[0].is_broken);
  fs::remove(folder_ / "optimizer_1.bin");
  EXPECT_THAT(open_source(posix_storage(), folder_)->losses(), testing::IsEmpty()) << "renamed";
}

/// A copy of a file of the user's is the model that the user means.
TEST_F(TwoModels, MayHaveACopyOfAnotherFileAsTheirModel) {
  for (const char* name : {"final.bin", "pytorch_model.bin"}) {
    fs::remove(folder_ / name);
    save_torch(folder_ / name, {{"a", tensor("a")}}, {{"a", {DType::Float32, {2}, {1, 5}}}},
               "final");
  }
  EXPECT_TRUE(open_source(posix_storage(), folder_)->catalog().find("a", state::kFp32));
}

TEST_F(TwoModels, OfWhichTheModelIsAnOptimizerAreRefused) {
  fs::copy_file(folder_ / "optimizer.bin", folder_ / "pytorch_model.bin",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(test::error_of([&] { open_source(posix_storage(), folder_); }),
              test::Fails(ErrorCode::Corrupt, {"pytorch_model.bin", "an optimizer"}));
}

TEST_F(TwoModels, OfWhichTheModelsAreSwappedAreDoubted) {
  const auto doubted = HasSubstr("the size of no parameter");
  EXPECT_THAT(open_source(posix_storage(), folder_)->remarks(),
              testing::Not(testing::Contains(doubted)));
  save_torch(folder_ / "other.bin", {{"a", tensor("a")}},
             {{"a", {DType::Float32, {3}, {1, 2, 3}}}});
  fs::rename(folder_ / "other.bin", folder_ / "pytorch_model.bin");
  EXPECT_THAT(
      open_source(posix_storage(), folder_)->remarks(),
      testing::Contains(testing::AllOf(doubted, HasSubstr("state.0 [momentum_buffer] (2)"))));
}

TEST_F(TwoModels, OfWhichFilesAreMissingSayWhich) {
  const auto names = [&] {
    std::vector<std::string> found;
    for (const Loss& loss : open_source(posix_storage(), folder_)->losses())
      found.push_back(loss.name);
    return found;
  };
  save_torch(folder_ / "scheduler_1.bin", kSchedule, {});
  EXPECT_THAT(names(), ElementsAre("scheduler.bin"));
  save_torch(folder_ / "scheduler.bin", kSchedule, {});
  EXPECT_THAT(names(), testing::IsEmpty());
  fs::rename(folder_ / "optimizer_1.bin", folder_ / "optimizer_2.bin");
  EXPECT_THAT(names(), testing::UnorderedElementsAre("optimizer_1.bin", "optimizer_1.bin",
                                                     "model_2.safetensors"));
  fs::remove(folder_ / "optimizer_2.bin");
  EXPECT_THAT(names(), ElementsAre("optimizer_1.bin")) << "the schedule tells";
  fs::rename(folder_ / "optimizer.bin", folder_ / "optimizer_1.bin");
  const Losses losses = open_source(posix_storage(), folder_)->losses();
  const auto first = std::ranges::find(losses, "optimizer.bin", &Loss::name);
  ASSERT_NE(first, losses.end());
  EXPECT_EQ(first->role, Role::Optimizer);
}

/// A schedule of torch leaves its mark in the groups of its optimizer.
TEST_F(TwoModels, WhoseSecondScheduleIsMissingSaySo) {
  const auto save_optimizer = [&](const std::string& name, bool is_scheduled) {
    Json group = {{"lr", 1.0}, {"params", Json::array({0})}};
    if (is_scheduled) group["initial_lr"] = 2.0;
    fs::remove(folder_ / name);
    save_torch(folder_ / name,
               {{"state", with_number_keys({{"momentum_buffer", tensor("m")}})},
                {"param_groups", Json::array({group})}},
               {{"m", {DType::Float32, {2}, {3, 7}}}});
  };
  const auto losses = [&] { return lines_of(open_source(posix_storage(), folder_)->losses()); };
  save_optimizer("optimizer.bin", true);
  save_optimizer("optimizer_1.bin", true);
  EXPECT_THAT(losses(), testing::IsEmpty()) << "no schedule was prepared";
  EXPECT_THAT(open_source(posix_storage(), folder_)->remarks(),
              testing::Contains(testing::AllOf(HasSubstr("scheduler.bin is not there"),
                                               HasSubstr("optimizer.bin and optimizer_1.bin"))));
  save_torch(folder_ / "scheduler.bin", kSchedule, {});
  EXPECT_THAT(losses(),
              ElementsAre(testing::AllOf(HasSubstr("file \"scheduler_1.bin\": not there"),
                                         HasSubstr("optimizer.bin and optimizer_1.bin"))));
  save_torch(folder_ / "scheduler_1.bin", kSchedule, {});
  EXPECT_THAT(losses(), testing::IsEmpty());
  EXPECT_THAT(open_source(posix_storage(), folder_)->remarks(),
              testing::Not(testing::Contains(HasSubstr("schedule"))));
  fs::remove(folder_ / "scheduler_1.bin");
  save_optimizer("optimizer_1.bin", false);
  EXPECT_THAT(losses(), testing::IsEmpty()) << "it had none";
}

/// FSDP saves each optimizer into a folder.
TEST_F(TrainerFolder, OfFsdpWithoutTheScheduleOfAnOptimizerSaysSo) {
  const Path folder = temp_.path() / "fsdp";
  fs::copy(Path(UNISHARD_TEST_DATA) / "golden/torch/fsdp2_lora", folder,
           fs::copy_options::recursive);
  const auto source = open_source(posix_storage(), kFolders / "llama");
  Output folders;
  folders.format = "dcp";
  for (const char* name : {"optimizer_1", "optimizer_2"})
    copy_of(*source, folder / name, {}, folders);
  const auto lost = testing::Contains(HasSubstr("\"scheduler_1.bin\": not there"));
  EXPECT_THAT(lines_of(open_source(posix_storage(), folder)->losses()), testing::Not(lost));
  save_torch(folder / "scheduler.bin", kSchedule, {}, "scheduler");
  EXPECT_THAT(lines_of(open_source(posix_storage(), folder)->losses()), lost);
  save_torch(folder / "scheduler_1.bin", kSchedule, {}, "scheduler_1");
  EXPECT_THAT(lines_of(open_source(posix_storage(), folder)->losses()), testing::Not(lost));
}

/// With FULL_STATE_DICT the Trainer saves the model itself, and accelerate saves it again.
TEST_F(TrainerFolder, OfFsdpHasTheSchedule) {
  const Path folder = copied("llama");
  fs::rename(folder / "optimizer.pt", folder / "optimizer.bin");
  EXPECT_EQ(open_source(posix_storage(), folder)->format(), "accelerate");
  EXPECT_EQ(open_source(posix_storage(), folder)->catalog().scheduler["last_epoch"], 2);
  EXPECT_THAT(open_source(posix_storage(), folder)->remarks(),
              testing::Not(testing::Contains(HasSubstr("scheduler"))));
  test::write_file(folder / "trainer_state.json", R"({"global_step": 3})");
  EXPECT_THAT(open_source(posix_storage(), folder)->remarks(),
              testing::Contains(HasSubstr("counts 3 steps, and the optimizer 2")));
  fs::remove(folder / "scheduler.pt");
  EXPECT_THAT(open_source(posix_storage(), folder)->remarks(),
              testing::Contains(HasSubstr("scheduler.pt is not there")));
}

TEST_F(TrainerFolder, WhoseOptimizerHasNoGroupsLosesIt) {
  const Path folder = copied("llama");
  for (const Json& state :
       {Json{{"x", 1}}, Json{{"state", Json::object()}, {"param_groups", Json::array()}}}) {
    fs::remove(folder / "optimizer.pt");
    save_torch(folder / "optimizer.pt", state, {});
    const Losses losses = open_source(posix_storage(), folder)->losses();
    ASSERT_EQ(losses.size(), 1u);
    EXPECT_EQ(losses[0].role, Role::Optimizer);
    EXPECT_THAT(losses[0].why, HasSubstr("param_groups"));
  }
}

/// Puts what is no optimizer in the place of a file.
void damage(const Path& file, const std::string& how) {
  const std::string bytes = test::read_file(file);
  fs::remove(file);
  if (how == "a folder") fs::create_directory(file);
  if (how == "a pipe") {
    EXPECT_EQ(mkfifo(file.c_str(), 0600), 0);
  }
  if (how == "empty") test::write_file(file, "");
  if (how == "half") test::write_file(file, bytes.substr(0, bytes.size() / 2));
  if (how == "short") test::write_file(file, bytes.substr(0, bytes.size() - 1));
  if (how == "other") test::write_file(file, std::string(70, 'g'));
}

TEST_F(TrainerFolder, WhoseOptimizerOrScheduleIsDamagedHasItsModel) {
  const auto whole = open_source(posix_storage(), kFolders / "llama");
  for (const std::string how : {"a folder", "a pipe", "empty", "half", "short", "other"}) {
    const Path folder = copied("llama");
    damage(folder / "optimizer.pt", how);
    const auto source = open_source(posix_storage(), folder);
    const Losses losses = source->losses();
    ASSERT_FALSE(losses.empty()) << how;
    for (const Loss& loss : losses) {
      EXPECT_EQ(loss.name, "optimizer.pt") << how;
      EXPECT_EQ(loss.role, Role::Optimizer) << how;
      EXPECT_TRUE(loss.is_broken) << how;
    }
    const auto names = tensor_labels(source->catalog());
    EXPECT_EQ(names.size(), 12u) << how;
    EXPECT_THAT(names, testing::Contains("lm_head.weight [weights]")) << how;
    fs::remove_all(folder);
  }
  for (const std::string how : {"empty", "half", "other"}) {
    const Path folder = copied("llama");
    damage(folder / "scheduler.pt", how);
    const auto source = open_source(posix_storage(), folder);
    ASSERT_EQ(source->losses().size(), 1u) << how;
    EXPECT_EQ(source->losses()[0].name, "scheduler.pt");
    EXPECT_EQ(source->losses()[0].role, Role::Setting);
    EXPECT_TRUE(source->losses()[0].is_broken);
    expect_same_tensors(*whole, *source);
    fs::remove_all(folder);
  }
}

TEST_F(TwoModels, OfWhichTheSecondOptimizerIsDamagedLoseIt) {
  damage(folder_ / "optimizer_1.bin", "half");
  const Losses losses = open_source(posix_storage(), folder_)->losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].name, "optimizer_1.bin");
  EXPECT_EQ(losses[0].role, Role::Optimizer);
}

/// The files of a run that a conversion copies and nothing else reads, as accelerate and the
/// Trainer call them.
class DamagedFile : public TrainerFolder, public testing::WithParamInterface<const char*> {
 protected:
  /// The losses of a folder whose file holds `bytes`.
  Losses losses_with(const std::string& bytes) const {
    fs::remove(file_);
    test::write_file(file_, bytes);
    return open_source(posix_storage(), folder_)->losses();
  }

  const Path folder_ = copied("llama");
  const Path file_ = folder_ / GetParam();
};

TEST_P(DamagedFile, IsNamed) {
  fs::remove(file_);
  save_torch(file_, {{"last_epoch", 2}, {"x", tensor("x")}},
             {{"x", {DType::Float32, {2}, {1, 2}}}});
  const std::string whole = test::read_file(file_);
  EXPECT_THAT(losses_with(whole), testing::IsEmpty());
  std::string flipped = whole, zeroed = whole;
  flipped[whole.find(std::string("\x00\x00\x80\x3f", 4))] = 1;
  zeroed.replace(whole.size() / 2, std::string::npos, whole.size() - whole.size() / 2, '\0');
  const std::string pickle = "\x80\x02}q\x01K\x01K\x02s.";
  EXPECT_THAT(losses_with(pickle), testing::IsEmpty());
  for (const std::string& bytes :
       {std::string(), whole.substr(0, whole.size() / 2), whole.substr(0, whole.size() - 1),
        std::string(whole.size(), '\0'), flipped, zeroed, pickle.substr(0, pickle.size() - 1)}) {
    const Losses losses = losses_with(bytes);
    ASSERT_EQ(losses.size(), 1u) << bytes.size();
    EXPECT_EQ(losses[0].name, GetParam());
    EXPECT_TRUE(losses[0].is_broken);
    EXPECT_THAT(losses[0].why, HasSubstr("damaged ("));
    const bool is_schedule = std::string(GetParam()).starts_with("scheduler");
    EXPECT_EQ(losses[0].role, is_schedule ? Role::Setting : Role::SideFile);
  }
}

INSTANTIATE_TEST_SUITE_P(Names, DamagedFile,
                         testing::Values("scheduler_1.bin", "scaler.pt", "rng_state_0.pth",
                                         "rng_state.pth", "random_states_0.pkl", "sampler.bin",
                                         "sampler_1.bin", "dl_state_dict.bin", "training_args.bin",
                                         "custom_checkpoint_0.pkl"));

TEST_F(TwoModels, ComeBackThroughOtherFormats) {
  const auto source = open_source(posix_storage(), folder_);
  const auto again = copy_of(*source, temp_.path() / "again", source->layout());
  EXPECT_THAT(again->catalog().client_state, source->catalog().client_state);
  for (const char* format : {"native", "dcp"}) {
    Output output, back;
    output.format = format;
    output.tag = "t";
    const auto other = copy_of(*source, temp_.path() / format, {}, output);
    back.format = "accelerate";
    const Path path = temp_.path() / (format + std::string("-back"));
    const auto copy = copy_of(*other, path, {}, back);
    EXPECT_TRUE(fs::exists(path / "model_1.safetensors")) << format;
    EXPECT_TRUE(fs::exists(path / "optimizer_1.bin")) << format;
    EXPECT_EQ(copy->catalog().client_state, source->catalog().client_state) << format;
    EXPECT_EQ(second_of(*copy), second_of(*source)) << format;
    expect_same_tensors(*source, *copy);
  }
}

/// An optimizer without its states would be loaded without an error.
TEST_F(TwoModels, OfWhichDeepSpeedHasNoPlaceForTheTensorsLeaveNoValues) {
  const auto source = open_source(posix_storage(), folder_);
  Output output;
  output.format = "deepspeed";
  output.tag = "t";
  const auto there = copy_of(*source, temp_.path() / "run", {}, output);
  EXPECT_EQ(there->format(), "deepspeed");
  EXPECT_THAT(there->catalog().client_state.dump(), testing::Not(HasSubstr("param_groups")));
  const auto sink = make_sink(posix_storage(),
                              {.format = "deepspeed", .path = temp_.path() / "other", .tag = "t"},
                              source->catalog());
  EXPECT_THAT(sink->notes(), testing::Contains(HasSubstr("client_state.optimizer_1: another")));
}

TEST_F(TwoModels, AreNamedWhereTheTrainerHasNoPlaceForThem) {
  const auto source = open_source(posix_storage(), folder_);
  const auto sink =
      make_sink(posix_storage(), {.format = "trainer", .path = temp_.path() / "out", .tag = {}},
                source->catalog());
  EXPECT_THAT(sink->notes(), testing::Contains(HasSubstr("\"model_1.a\" first")));
  EXPECT_EQ(sink->left_out().size(), 2u);
}

/// What it left out is not there for the next conversion either.
TEST_F(TwoModels, ThatTheTrainerHasNoPlaceForAreNotInItsCatalog) {
  const auto source = open_source(posix_storage(), folder_);
  Output trainer, file;
  trainer.format = "trainer";
  file.format = "torch";
  const auto made = copy_of(*source, temp_.path() / "made", {}, trainer);
  EXPECT_TRUE(made->catalog().client_state.is_null() || made->catalog().client_state.empty())
      << made->catalog().client_state;
  file.path = temp_.path() / "out.pt";
  EXPECT_THAT(make_sink(posix_storage(), file, made->catalog())->notes(), testing::IsEmpty());
}

/// A checkpoint of which an earlier version left the tensors out, and not the values.
TEST_F(TwoModels, OfWhichValuesNameTensorsThatAreNotThereSaySo) {
  Catalog catalog = open_source(posix_storage(), folder_)->catalog();
  std::erase_if(catalog.tensors, [](const TensorInfo& tensor) { return tensor.state == "extra"; });
  const auto sink = make_sink(
      posix_storage(), {.format = "torch", .path = temp_.path() / "out.pt", .tag = {}}, catalog);
  EXPECT_THAT(sink->notes(),
              testing::Contains(HasSubstr("model_1: tensors in it are not in the checkpoint")));
}

TEST_F(TwoModels, WhoseValuesAreForgedAreLeftOutByName) {
  const auto source = open_source(posix_storage(), folder_);
  Catalog catalog = source->catalog();
  int number = 0;
  for (const Json& forged :
       {Json(5), Json{{"a", {{"$tensor", 5}}}}, Json{{"a", tensor("gone")}},
        Json{{"$type", "builtins.dict"}, {"pairs", 7}}, Json{{"a", tensor("a")}},
        Json{{"a", tensor("model_1.a")}, {"b", {{"$type", "x"}}}}}) {
    catalog.client_state["model_1"] = forged;
    const Path out = temp_.path() / std::to_string(number++);
    const auto sink =
        make_sink(posix_storage(), {.format = "accelerate", .path = out, .tag = {}}, catalog);
    EXPECT_THAT(sink->notes(), testing::Contains(HasSubstr("model_1"))) << forged;
  }
}

TEST_F(TrainerFolder, NamesModelsThatItDoesNotRead) {
  const Path folder = copied("llama");
  fs::copy_file(folder / "model.safetensors", folder / "ema.safetensors");
  fs::create_directory(folder / "other_adapter");
  EXPECT_THAT(notes_of(*open_source(posix_storage(), folder)),
              ElementsAre("left out: file of other weights \"ema.safetensors\"",
                          "left out: file \"other_adapter\""));
}

TEST_F(TrainerFolder, WithoutOptimizerStatesIsNoCheckpoint) {
  const auto source = open_source(posix_storage(), kFolders / "llama/model.safetensors");
  const auto error = test::error_of([&] {
    make_sink(posix_storage(), {.format = "trainer", .path = temp_.path() / "out", .tag = {}},
              source->catalog());
  });
  EXPECT_EQ(error.code(), ErrorCode::Unsupported);
  EXPECT_FALSE(fs::exists(temp_.path() / "out"));
}

TEST_F(TrainerFolder, HasNoPlaceForStatesOfParametersThatTheModelLacks) {
  Catalog catalog = open_source(posix_storage(), copied("llama"))->catalog();
  const auto trained = std::ranges::find(catalog.tensors, state::kExpAvg, &TensorInfo::state);
  ASSERT_NE(trained, catalog.tensors.end());
  const std::string gone = trained->fqn;
  std::erase_if(catalog.tensors, [&](const TensorInfo& tensor) {
    return tensor.fqn == gone && (tensor.state == state::kFp32 || tensor.state == state::kWeights);
  });
  EXPECT_THAT(test::error_of([&] {
                make_sink(posix_storage(),
                          {.format = "trainer", .path = temp_.path() / "out", .tag = {}}, catalog);
              }),
              test::Fails(ErrorCode::Unsupported, {gone, "that the model lacks"}));
}

TEST_F(TrainerFolder, OutputFolderMeansTheCheckpointWithTheHighestNumber) {
  const Path run = temp_.path() / "run";
  fs::create_directory(run);
  for (const char* name : {"checkpoint-9", "checkpoint-10"})
    fs::copy(kFolders / "llama", run / name);
  for (const char* name : {"checkpoint-8", "checkpoint-x", "checkpoint-12-old"})
    fs::create_directory(run / name);
  EXPECT_EQ(find_numbered_checkpoint(posix_storage(), run, {}), run / "checkpoint-10");
  EXPECT_EQ(find_numbered_checkpoint(posix_storage(), run, "checkpoint-9"), run / "checkpoint-9");
  EXPECT_EQ(find_numbered_checkpoint(posix_storage(), run, "checkpoint-x"), std::nullopt);
  EXPECT_EQ(open_source(posix_storage(), run)->path(), run / "checkpoint-10");
  // With a final model in it, the folder is that model, and tags are its checkpoints.
  fs::copy_file(kFolders / "llama/model.safetensors", run / "model.safetensors");
  EXPECT_EQ(open_source(posix_storage(), run)->format(), "safetensors");
  EXPECT_EQ(open_source(posix_storage(), run, "checkpoint-9")->path(), run / "checkpoint-9");
}

TEST_F(TrainerFolder, ModelsInFoldersWithinAreNamed) {
  const Path folder = temp_.path() / "run";
  fs::copy(kFolders / "llama", folder);
  fs::create_directories(folder / "second");
  fs::create_directories(folder / "runs");
  fs::copy_file(folder / "model.safetensors", folder / "second/adapter_model.safetensors");
  std::vector<std::string> models;
  for (const Loss& loss : open_source(posix_storage(), folder)->losses())
    if (loss.role == Role::OtherModel) models.push_back(loss.name);
  EXPECT_THAT(models, ElementsAre("second/adapter_model.safetensors"));
}

TEST_F(TrainerFolder, OutputFolderWhoseNewestCheckpointIsUnfinishedIsRefused) {
  const Path run = temp_.path() / "run", newest = run / "checkpoint-10";
  fs::create_directories(newest);
  fs::copy(kFolders / "llama", run / "checkpoint-9");
  test::write_file(newest / "trainer_state.json", "{}");
  EXPECT_THAT(test::error_of([&] { find_numbered_checkpoint(posix_storage(), run, {}); }),
              test::Fails(ErrorCode::Corrupt, {"checkpoint-10 is the newest", "did not finish"}));
  EXPECT_EQ(find_numbered_checkpoint(posix_storage(), run, "checkpoint-9"), run / "checkpoint-9");
  fs::copy_file(kFolders / "llama/model.safetensors", newest / "model.safetensors");
  EXPECT_EQ(find_numbered_checkpoint(posix_storage(), run, {}), newest);
}

TEST(KnownModels, HaveTheirParametersInOrder) {
  const auto order = trainer::known_order("gpt2");
  ASSERT_TRUE(order);
  std::vector<std::string> names = {
      "lm_head.weight",         "transformer.h.10.ln_1.bias", "transformer.h.2.ln_2.weight",
      "transformer.wpe.weight", "transformer.h.2.ln_1.bias",  "transformer.h.2.ln_1.weight"};
  std::ranges::sort(names, {},
                    [&](const std::string& name) { return order->place_of(name).value(); });
  EXPECT_THAT(names, ElementsAre("transformer.wpe.weight", "transformer.h.2.ln_1.weight",
                                 "transformer.h.2.ln_1.bias", "transformer.h.2.ln_2.weight",
                                 "transformer.h.10.ln_1.bias", "lm_head.weight"));
  EXPECT_EQ(order->place_of("h.2.ln_1.bias"), order->place_of("transformer.h.2.ln_1.bias"));
  for (const char* other : {"transformer.h.ln_1.weight", "transformer.h.x.ln_1.weight", "", ".",
                            "transformer.h.2.ln_3.weight", "transformer.h.99999999999.ln_1.bias"})
    EXPECT_EQ(order->place_of(other), std::nullopt) << other;
  EXPECT_FALSE(trainer::known_order("gpt"));
  EXPECT_FALSE(trainer::known_order(""));
}

TEST(NumberedParameters, WithoutStatesHaveNamesByTheTrainersRule) {
  // The rule goes by the class of a layer: "ln_f.weight" does not tell that it normalises.
  const std::vector<dcp::NamedShape> model = {
      {"wte.weight", {8, 4}}, {"ln_f.weight", {4}}, {"ln_f.bias", {4}}, {"score.weight", {2, 4}}};
  const dcp::NumberedParameters sgd = {.numbers = {"0", "1", "2", "3"},
                                       .groups = {{std::nullopt, std::nullopt}, {{}, {}}}};
  const trainer::OrderSource source{.is_file_order = true};
  const auto names = trainer::name_parameters(source, sgd, model);
  ASSERT_TRUE(names);
  EXPECT_THAT(*names, ElementsAre("wte.weight", "score.weight", "ln_f.weight", "ln_f.bias"));
  const dcp::NumberedParameters other = {.numbers = sgd.numbers, .groups = {{{}}, {{}, {}, {}}}};
  EXPECT_FALSE(trainer::name_parameters(source, other, model));
}

TEST(AdapterNames, AreThoseOfTheModuleAndOfTheFile) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"m.q.lora_A.default.weight", "m.q.lora_A.weight"},
      {"m.q.lora_magnitude_vector.default.weight", "m.q.lora_magnitude_vector"},
      {"m.q.ia3_l.default", "m.q.ia3_l"},
      {"m.e.token_adapter.trainable_tokens_delta.default",
       "m.e.token_adapter.trainable_tokens_delta"},
      {"m.head.modules_to_save.default.bias", "m.head.bias"}};
  EXPECT_EQ(adapter_module_name("m.head.base_layer.weight", {"m.head.base_layer.weight"}),
            "m.head.base_layer.weight")
      << "frozen, and saved with an embedding that has grown";
  for (const auto& [module_name, file_name] : names) {
    EXPECT_EQ(adapter_file_name(module_name), file_name);
    EXPECT_EQ(adapter_module_name(file_name, {"m.head.bias", "m.head.weight"}), module_name);
  }
  EXPECT_EQ(adapter_module_name("m.k.bias", {"m.k.bias"}), "m.k.bias") << "bias=\"all\"";
  EXPECT_EQ(adapter_file_name("m.q.lora_A.other.weight"), "m.q.lora_A.weight");
  EXPECT_EQ(adapter_file_name("m.q.lora_A.weight"), "m.q.lora_A.weight");
  EXPECT_EQ(adapter_file_name("m.q.vera_lambda_b.default"), "m.q.vera_lambda_b");
  EXPECT_EQ(adapter_file_name("m.q.oft_R.default.weight"), "m.q.oft_R.weight");
  EXPECT_EQ(adapter_file_name("m.q.base_layer.weight"), std::nullopt);
  EXPECT_EQ(adapter_file_name("m.head.original_module.weight"), std::nullopt);
  for (const char* odd : {"lora_A", "", ".", "modules_to_save", "a.modules_to_save"})
    EXPECT_NO_THROW({
      adapter_file_name(odd);
      adapter_module_name(odd, {});
    }) << odd;
}

Catalog with_weights(const std::vector<std::string>& names) {
  Catalog catalog;
  for (const std::string& name : names) {
    TensorInfo tensor;
    tensor.fqn = name;
    tensor.state = state::kWeights;
    catalog.tensors.push_back(std::move(tensor));
  }
  return catalog;
}

TEST(AdapterFile, HoldsEverythingThatWasReadFromOne) {
  Catalog catalog = with_weights({"m.q.lora_A.default.weight", "m.q.vector_bank"});
  record_adapter(catalog.producer, AdapterNaming::Modules);
  EXPECT_EQ(AdapterFile(catalog).name_of("m.q.lora_A.default.weight"), "m.q.lora_A.weight");
  EXPECT_EQ(AdapterFile(catalog).name_of("m.q.vector_bank"), "m.q.vector_bank");
  record_adapter(catalog.producer, AdapterNaming::File);
  EXPECT_EQ(AdapterFile(catalog).name_of("m.q.lora_A.default.weight"), "m.q.lora_A.default.weight");
}

TEST(AdapterFile, OfAnotherCheckpointHoldsWhatNamesTell) {
  const AdapterFile adapter(with_weights({"m.q.hada_w1_a.default", "m.q.weight"}));
  EXPECT_EQ(adapter.name_of("m.q.hada_w1_a.default"), "m.q.hada_w1_a");
  EXPECT_EQ(adapter.name_of("m.q.weight"), std::nullopt);
  const AdapterFile prompts(with_weights({"prompt_encoder.default.embedding.weight", "m.weight"}));
  EXPECT_EQ(prompts.name_of("prompt_encoder.default.embedding.weight"), "prompt_embeddings");
  EXPECT_THAT(test::error_of([&] { prompts.name_of("prompt_encoder.default.mlp_head.0.weight"); }),
              test::Fails(ErrorCode::Unsupported, "computes the embeddings"));
  const AdapterFile two(with_weights({"m.q.lora_A.default.weight", "m.q.lora_A.other.weight",
                                      "m.head.modules_to_save.other.weight"}));
  EXPECT_EQ(two.name_of("m.q.lora_A.default.weight"), "m.q.lora_A.weight");
  EXPECT_EQ(two.name_of("m.q.lora_A.other.weight"), std::nullopt);
  EXPECT_EQ(two.name_of("m.head.modules_to_save.other.weight"), std::nullopt);
  const AdapterFile named(with_weights({"m.q.lora_A.other.weight"}));
  EXPECT_EQ(named.name_of("m.q.lora_A.other.weight"), "m.q.lora_A.weight");
  // Where no name tells anything, an empty file would lose the adapter.
  EXPECT_EQ(AdapterFile(with_weights({"prompt"})).name_of("prompt"), "prompt");
}

/// Each name that the file holds is the adapter's, of whatever kind it is.
TEST_F(TrainerFolder, OfAnAdapterKeepsAllItsTensors) {
  const std::vector<std::vector<std::string>> kinds = {
      {"prompt_embeddings"},
      {"m.q.vera_lambda_b", "m.q.vera_lambda_d", "m.vera_A"},
      {"m.q.lora_A.weight", "m.e.token_adapter.trainable_tokens_delta", "m.vector_bank"},
      {"m.q.lora_A.weight", "m.q.lora_magnitude_vector.weight"}};
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    const std::vector<std::string>& names = kinds[kind];
    const Path work = temp_.path() / std::to_string(kind), folder = work / "in";
    fs::create_directories(folder);
    Json model = Json::object(), numbers = Json::array();
    std::map<std::string, Made> tensors;
    for (const std::string& name : names) {
      model[name] = tensor(name);
      tensors[name] = {DType::Float32, {1}, {static_cast<float>(tensors.size())}};
      numbers.push_back(numbers.size());
    }
    save_torch(folder / "adapter_model.bin", model, tensors);
    save_torch(folder / "optimizer.pt",
               {{"state", Json::object()},
                {"param_groups", Json::array({{{"lr", 0.5}, {"params", numbers}}})}},
               {});
    const auto source = open_source(posix_storage(), folder);
    Output native, trainer;
    native.format = "native";
    native.tag = "t";
    trainer.format = "trainer";
    trainer.stem = kAdapterStem;
    const auto stored = copy_of(*source, work / "native", {}, native);
    for (const auto* each : {source.get(), stored.get()}) {
      const Path out = work / (each == stored.get() ? "back" : "again");
      const auto again =
          copy_of(*each, out, each == stored.get() ? Json() : each->layout(), trainer);
      expect_same_tensors(*source, *again);
      std::vector<std::string> found;
      const auto file = open_source(posix_storage(), out / "adapter_model.safetensors");
      for (const TensorInfo& tensor : file->catalog().tensors) found.push_back(tensor.fqn);
      EXPECT_THAT(found, testing::UnorderedElementsAreArray(names));
    }
  }
}

}  // namespace
}  // namespace unishard::converters
