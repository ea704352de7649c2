// What a reader cannot read is a loss with a role; what an optimizer has is never a weight; names
// and moments are the model's, or they are not given at all.
#include "unishard/converters/loss.hpp"
#include "unishard/converters/registry.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "containers/inline_tensors.hpp"
#include "containers/pickle_json.hpp"
#include "containers/torch_file.hpp"
#include "core/nested_states.hpp"
#include "core/wrapped_names.hpp"
#include "formats/dcp/keys.hpp"
#include "read_source.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"
#include "torch_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <span>

namespace unishard::converters {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::map<std::string, Made> kTensors = {
    {"a", {DType::Float32, {2, 3}, {1, 2, 3, 4, 5, 6}}},
    {"copy of a", {DType::Float32, {2, 3}, {1, 2, 3, 4, 5, 6}}},
    {"b", {DType::Float32, {4}, {1, 2, 3, 4}}},
    {"m", {DType::Float32, {2, 3}, {6, 5, 4, 3, 2, 1}}},
    {"n", {DType::Float32, {4}, {4, 3, 2, 1}}},
    {"t", {DType::Float32, {8}, std::vector<float>(8)}}};

Json dict(std::vector<std::pair<Json, Json>> pairs) {
  Json rows = Json::array();
  for (auto& [key, value] : pairs) rows.push_back(Json::array({std::move(key), std::move(value)}));
  return {{"$type", "builtins.dict"}, {"pairs", std::move(rows)}};
}

Json groups(Json params) { return Json::array({{{"lr", 0.1}, {"params", std::move(params)}}}); }

std::vector<std::string> loss_labels(const Catalog& catalog) {
  std::vector<std::string> out;
  for (const TensorInfo& tensor : catalog.tensors) out.push_back(tensor.fqn + " " + tensor.state);
  std::ranges::sort(out);
  return out;
}

class ReadFile : public testing::Test {
 protected:
  std::unique_ptr<Source> open(const Json& object, const OpenOptions& options = {}) {
    const Path path = temp_.path() / std::to_string(count_++) / "a.pt";
    std::filesystem::create_directory(path.parent_path());
    save_torch(path, object, kTensors);
    return open_source(posix_storage(), path, options);
  }
  std::unique_ptr<Source> convert(const Source& from, const std::string& format) {
    return convert(from, from.catalog(), format);
  }
  /// Writes the tensors under the names of `catalog`, which has them in the order of the source.
  std::unique_ptr<Source> convert(const Source& from, const Catalog& catalog,
                                  const std::string& format) {
    const Path folder = temp_.path() / std::to_string(count_++);
    const bool is_file = format_entry(format).shape == OutputShape::FileOrFolder;
    const Path path = is_file ? folder / (format == "torch" ? "a.pt" : "a." + format) : folder;
    if (is_file) std::filesystem::create_directory(folder);
    const auto sink =
        make_sink(posix_storage(), {.format = format, .path = path, .tag = "t"}, catalog);
    for (std::size_t i = 0; i < sink->fragments().size(); ++i) {
      const Fragment& fragment = sink->fragments()[i];
      std::vector<std::byte> bytes(fragment.range.size() *
                                   size_of(from.catalog().tensors[fragment.tensor].dtype));
      from.read(fragment.tensor, fragment.range, bytes);
      sink->write(i, fragment.range, bytes);
    }
    sink->commit();
    return open_source(posix_storage(), path);
  }

  /// Expects the same tensors and values of states from every format that can hold them.
  void expect_through_every_format(const Source& source, const std::vector<std::string>& expected) {
    for (const char* format : {"native", "dcp", "torch", "trainer", "accelerate", "safetensors"}) {
      const auto copy = convert(source, format);
      EXPECT_EQ(loss_labels(copy->catalog()), expected) << format;
      EXPECT_THAT(copy->losses(), IsEmpty()) << format;
      EXPECT_EQ(copy->catalog().client_state.value("optimizer_scalars", Json()),
                source.catalog().client_state.value("optimizer_scalars", Json()))
          << format;
    }
  }

  test::TempDir temp_;
  int count_ = 0;
};

TensorInfo weight_named(const std::string& fqn) {
  TensorInfo tensor;
  tensor.fqn = fqn;
  tensor.state = state::kWeights;
  return tensor;
}

/// An array of numpy as it is pickled, without its content.
Json numpy_array() {
  return {{"$type", "object"},
          {"name", "numpy.core.multiarray._reconstruct"},
          {"args", Json::array({{{"$type", "global"}, {"name", "numpy.ndarray"}},
                                {{"$type", "tuple"}, {"items", Json::array({0})}},
                                {{"$type", "bytes"}, {"hex", "62"}}})}};
}

TEST(Loss, HasAWordForPeopleAndOneForPrograms) {
  const Loss loss{
      .role = Role::Weight, .name = "w", .why = "a sparse tensor", .shape = Shape{2, 3}};
  EXPECT_EQ(text_of(loss), "weight \"w\" of size (2, 3): a sparse tensor");
  EXPECT_EQ(lines_of({loss}).front(), "left out: " + text_of(loss));
  EXPECT_EQ(to_string(Role::StaleFile), "stale_file");
  EXPECT_EQ(text_of({.role = Role::SideFile, .name = "x"}), "file \"x\"");
}

TEST(NestedStates, AreDictsInFilesAndOneStateEachInACatalog) {
  EXPECT_EQ(member_state("q", "absmax1"), "q--absmax1");
  EXPECT_THAT(state_levels("__q__--s--t"), ElementsAre("__q__", "s", "t"));
  EXPECT_THAT(state_levels("--a"), ElementsAre("--a"));
  EXPECT_THAT(state_levels("a--"), ElementsAre("a--"));
  EXPECT_EQ(nest_states({{"q--a", 1}, {"x", 2}, {"q--b", 3}}),
            (Json{{"q", {{"a", 1}, {"b", 3}}}, {"x", 2}}));
  // A name whose place is taken stays as it is: nothing is lost.
  EXPECT_EQ(nest_states({{"q", 1}, {"q--a", 2}}), (Json{{"q", 1}, {"q--a", 2}}));
}

TEST(WrappedNames, LoseTheWrappersAndGetThemBack) {
  EXPECT_EQ(without_wrappers("_orig_mod.h.0._fsdp_wrapped_module.w"), "h.0.w");
  EXPECT_EQ(without_wrappers("h._checkpoint_wrapped_module._orig_mod.w"), "h.w");
  EXPECT_EQ(without_wrappers("my_orig_mod.w"), "my_orig_mod.w");
  EXPECT_EQ(without_wrappers("a._orig_mod"), "a._orig_mod");
  EXPECT_EQ(without_wrappers("_forward_module.h._forward_module.w"), "h.w");
  EXPECT_TRUE(have_replica_part({"module.a", "module.b.c"}));
  EXPECT_FALSE(have_replica_part({"module.a", "n_averaged"}));
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"_orig_mod.a", "_orig_mod.h._fsdp_wrapped_module.b"},
        {"module.a", "module.h.b"},
        {"module._orig_mod.a", "module._orig_mod.h.b"},
        {"_orig_mod.module.a", "_orig_mod.module.h.b"}}) {
    Catalog catalog;
    for (const std::string& name : names) {
      catalog.tensors.push_back(weight_named(name));
    }
    catalog.groups = Json::array({{{"params", names}}});
    const Catalog wrapped = catalog;
    unwrap_names(catalog, "deepspeed");
    EXPECT_EQ(catalog.tensors[0].fqn, "a");
    EXPECT_EQ(catalog.tensors[1].fqn, "h.b");
    EXPECT_EQ(catalog.groups[0]["params"], (Json{"a", "h.b"}));
    Catalog other = catalog;
    wrap_names(other, "torch");
    EXPECT_EQ(other.tensors[0].fqn, "a") << "the record is one of another program";
    wrap_names(catalog, "deepspeed");
    EXPECT_EQ(catalog.tensors[0].fqn, names[0]);
    EXPECT_EQ(catalog.tensors[1].fqn, names[1]);
    EXPECT_EQ(catalog.groups, wrapped.groups);
  }
}

TEST(WrappedNames, StayWhereTwoTensorsWouldHaveOneName) {
  Catalog catalog;
  for (const char* name : {"_orig_mod.a", "a"}) catalog.tensors.push_back(weight_named(name));
  unwrap_names(catalog, "torch");
  EXPECT_EQ(catalog.tensors[0].fqn, "_orig_mod.a");
  EXPECT_TRUE(catalog.producer.is_null());
}

TEST_F(ReadFile, AStateDictOfACompiledModelHasTheModelsNames) {
  const auto source = open({{"_orig_mod.a", tensor("a")}, {"_orig_mod.h.b", tensor("b")}});
  EXPECT_THAT(loss_labels(source->catalog()), ElementsAre("a weights", "h.b weights"));
  const auto copy = convert(*source, "safetensors");
  EXPECT_THAT(loss_labels(copy->catalog()), ElementsAre("a weights", "h.b weights"));
}

TEST_F(ReadFile, ADictOfStatesIsOfItsParameterThroughEveryFormat) {
  const Json state =
      dict({{0, {{"step", 2}, {"q", {{"s", tensor("m")}, {"table", tensor("t")}}}}}});
  const auto source =
      open({{"model", {{"a", tensor("a")}}},
            {"optimizer", {{"state", state}, {"param_groups", groups(Json::array({0}))}}}});
  const std::vector<std::string> expected = {"a fp32", "a q--s", "a q--table"};
  EXPECT_EQ(loss_labels(source->catalog()), expected);
  EXPECT_THAT(source->losses(), IsEmpty());
  expect_through_every_format(*source, expected);
}

TEST_F(ReadFile, AListOfStatesIsOfItsParameterThroughEveryFormat) {
  const Json pair = {{"$type", "tuple"}, {"items", Json::array({tensor("n"), 3})}};
  const Json queue = {{"$type", "object"},
                      {"name", "collections.deque"},
                      {"args", Json::array({Json::array(), 5})},
                      {"items", Json::array({tensor("n")})}};
  const Json state = dict({{0,
                            {{"step", 2},
                             {"GG", Json::array({tensor("m"), nullptr, tensor("t")})},
                             {"q", {{"inner", Json::array({pair})}}},
                             {"by_number", dict({{-3, tensor("t")}})},
                             {"queue", queue}}}});
  const auto source =
      open({{"model", {{"a", tensor("a")}}},
            {"optimizer", {{"state", state}, {"param_groups", groups(Json::array({0}))}}}});
  const std::vector<std::string> expected = {"a GG--0", "a GG--2",          "a by_number---3",
                                             "a fp32",  "a q--inner--0--0", "a queue--0"};
  EXPECT_EQ(loss_labels(source->catalog()), expected);
  EXPECT_THAT(source->losses(), IsEmpty());
  expect_through_every_format(*source, expected);
}

TEST_F(ReadFile, AStateOfTorchaoIsOfItsParameterThroughEveryFormat) {
  const auto global = [](const char* name) { return Json{{"$type", "global"}, {"name", name}}; };
  const Json layout = {{"$type", "object"},
                       {"name", "torch.serialization._get_layout"},
                       {"args", Json::array({"torch.strided"})}};
  const Json arguments = {
      {"$type", "tuple"},
      {"items", Json::array({global("torchao.optim.subclass_8bit.OptimState8bit"), layout})}};
  const Json packed = {{"$type", "object"},
                       {"name", "torch._tensor._rebuild_from_type_v2"},
                       {"args", Json::array({global("torch._utils._rebuild_wrapper_subclass"),
                                             global("torchao.optim.subclass_8bit.OptimState8bit"),
                                             arguments,
                                             {{"codes", tensor("n")}, {"signed", true}}})}};
  const Json state = dict({{0, {{"step", 2}, {"exp_avg", packed}, {"sum", tensor("m")}}}});
  const auto source =
      open({{"model", {{"a", tensor("a")}}},
            {"optimizer", {{"state", state}, {"param_groups", groups(Json::array({0}))}}}});
  const std::vector<std::string> expected = {"a exp_avg--3--codes", "a fp32", "a sum"};
  EXPECT_EQ(loss_labels(source->catalog()), expected);
  EXPECT_THAT(source->losses(), IsEmpty());
  expect_through_every_format(*source, expected);
}

TEST_F(ReadFile, AStateWithoutANameIsNoParameter) {
  // A file of this test cannot hold an object of another class, so a state has a key that no state
  // can be called by.
  const Json state =
      dict({{0, {{"exp_avg", tensor("m")}, {"pro.jector", Json::array({tensor("t")})}}}});
  const auto source =
      open({{"model", {{"a", tensor("a")}}},
            {"optimizer", {{"state", state}, {"param_groups", groups(Json::array({0}))}}}});
  EXPECT_THAT(loss_labels(source->catalog()), ElementsAre("a exp_avg", "a fp32"));
  ASSERT_EQ(source->losses().size(), 1u);
  EXPECT_EQ(source->losses()[0].role, Role::State);
  EXPECT_EQ(source->losses()[0].name, "pro.jector of 0");
}

TEST_F(ReadFile, StatesThatManyParametersLoseAreCounted) {
  const Json state = dict({{0, {{"exp_avg", tensor("m")}, {"pro.jector", tensor("t")}}},
                           {1, {{"exp_avg", tensor("n")}, {"pro.jector", tensor("t")}}}});
  const auto source =
      open({{"model", {{"a", tensor("a")}, {"b", tensor("b")}}},
            {"optimizer", {{"state", state}, {"param_groups", groups(Json::array({0, 1}))}}}});
  ASSERT_EQ(source->losses().size(), 1u);
  EXPECT_EQ(source->losses()[0].name, "pro.jector of 2 parameters, 0 first");
}

TEST_F(ReadFile, WhatTheGroupsOfAnOptimizerWithoutStatesDoNotListIsFrozen) {
  const auto frozen_in = [&](Json group) {
    const auto source =
        open({{"model", {{"a", tensor("a")}, {"b", tensor("b")}}},
              {"optimizer", {{"state", Json::object()}, {"param_groups", Json::array({group})}}}});
    std::vector<std::string> names;
    for (const TensorInfo& tensor : source->catalog().tensors) {
      if (tensor.frozen) names.push_back(tensor.fqn);
    }
    EXPECT_NO_THROW(convert(*source, names.empty() ? "native" : "deepspeed"));
    return names;
  };
  EXPECT_THAT(frozen_in({{"lr", 0.1}, {"params", {0}}, {"param_names", {"a"}}}), ElementsAre("b"));
  EXPECT_THAT(frozen_in({{"lr", 0.1}, {"params", {0}}}), IsEmpty()) << "nothing tells which";
}

TEST_F(ReadFile, MomentsOfEqualShapesKeepTheirNumbersUnlessTheOrderIsConfirmed) {
  const Json state = dict({{0, {{"exp_avg", tensor("m")}}}, {1, {{"exp_avg", tensor("a")}}}});
  const Json object = {
      {"model", {{"x", tensor("a")}, {"y", tensor("m")}}},
      {"optimizer", {{"state", state}, {"param_groups", groups(Json::array({0, 1}))}}}};
  const auto guess = open(object);
  EXPECT_THAT(loss_labels(guess->catalog()), Contains("state.0 exp_avg"));
  EXPECT_THAT(guess->remarks(), Contains(HasSubstr("--assume-model-order")));
  const auto confirmed = open(object, {.assume_model_order = true});
  EXPECT_THAT(loss_labels(confirmed->catalog()),
              ElementsAre("x exp_avg", "x fp32", "y exp_avg", "y fp32"));
}

/// accelerate saves the adapter of a PEFT model under FSDP2 with the names of the adapter's file.
TEST_F(ReadFile, AnAdapterHasTheNamesThatItsOptimizerKnows) {
  const auto source =
      open({{"model", {{"h.q.lora_A.weight", tensor("a")}, {"head.weight", tensor("n")}}},
            {"optimizer",
             {{"state",
               {{"h.q.lora_A.mine.weight", {{"exp_avg", tensor("m")}}},
                {"head.modules_to_save.mine.weight", {{"exp_avg", tensor("b")}}}}},
              {"param_groups",
               groups({"h.q.lora_A.mine.weight", "head.modules_to_save.mine.weight"})}}}});
  const std::vector<std::string> expected = {
      "h.q.lora_A.mine.weight exp_avg", "h.q.lora_A.mine.weight fp32",
      "head.modules_to_save.mine.weight exp_avg", "head.modules_to_save.mine.weight fp32"};
  EXPECT_EQ(loss_labels(source->catalog()), expected);
  EXPECT_EQ(source->catalog().producer["adapter_names"], "modules");
  EXPECT_THAT(source->losses(), IsEmpty());
  for (const char* format : {"native", "dcp", "torch"})
    EXPECT_EQ(loss_labels(convert(*source, format)->catalog()), expected) << format;
}

/// Equal copies, of which the optimizer knows the second.
TEST_F(ReadFile, CopiesOfATiedWeightAreWrittenUnderTheTrainedName) {
  const auto source = open(
      {{"model", {{"head", tensor("copy of a")}, {"wte", tensor("a")}}},
       {"optimizer",
        {{"state", {{"wte", {{"exp_avg", tensor("m")}}}}}, {"param_groups", groups({"wte"})}}}});
  EXPECT_TRUE(source->layout().is_null());
  const auto file = convert(*source, "torch");
  EXPECT_EQ(loss_labels(file->catalog()), (std::vector<std::string>{"wte exp_avg", "wte fp32"}));
  EXPECT_EQ(file->catalog().aliases, (std::vector<Alias>{{"head", "wte"}}));
}

/// Lightning's WeightAveraging, and its EMAWeightAveraging.
TEST_F(ReadFile, TheAverageOfTheWeightsIsNotTheModel) {
  const auto source = open(
      {{"state_dict", {{"x", tensor("a")}}},
       {"optimizer_states", Json::array({{{"state", with_number_keys({{"exp_avg", tensor("m")}})},
                                          {"param_groups", groups(Json::array({0}))}}})},
       {"current_model_state", {{"x", tensor("m")}}},
       {"averaging_state", {{"n_averaged", tensor("b")}}}});
  const auto at = source->catalog().find("x", state::kFp32);
  ASSERT_TRUE(at);
  EXPECT_EQ(source->catalog().tensors[*at].shape, (Shape{2, 3}));
  std::vector<float> values(6);
  source->read(*at, {0, 6}, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, kTensors.at("m").values);
  EXPECT_TRUE(source->catalog().find("state_dict.x", kExtraState));
  EXPECT_THAT(source->remarks(), Contains(HasSubstr("state_dict has the average of the weights")));
  EXPECT_EQ(loss_labels(convert(*source, "torch")->catalog()), loss_labels(source->catalog()));
}

/// SGD counts no steps, and Lightning counts those of the run.
TEST_F(ReadFile, TheStepOfLightningIsThatOfAnOptimizerWithoutOne) {
  const auto source =
      open({{"pytorch-lightning_version", "2.6.0"},
            {"global_step", 8},
            {"state_dict", {{"x", tensor("a")}}},
            {"optimizer_states",
             Json::array({{{"state", with_number_keys({{"momentum_buffer", tensor("m")}})},
                           {"param_groups", groups(Json::array({0}))}}})}});
  EXPECT_EQ(source->catalog().step, 8);
}

/// A file of weights of DistributedDataParallel, and the copy of it, whose catalog names them.
TEST_F(ReadFile, AReplicasFileOfWeightsIsReadAlikeFromItsCopies) {
  const auto source = open({{"module.w", tensor("a")}, {"module.v", tensor("n")}});
  const auto expected = loss_labels(source->catalog());
  ASSERT_EQ(expected, (std::vector<std::string>{"v weights", "w weights"}));
  for (const char* format : {"safetensors", "torch", "npz", "hdf5", "gguf"}) {
    const auto copy = convert(*source, format);
    EXPECT_EQ(loss_labels(copy->catalog()), expected) << format;
    EXPECT_EQ(loss_labels(convert(*copy, format)->catalog()), expected) << format;
  }
}

TEST_F(ReadFile, ASmallTensorOfTheClientStateIsUnderItsKeyInATorchFile) {
  const auto source =
      open({{"model", {{"x", tensor("a")}}},
            {"optimizer",
             {{"state", {{"x", {{"exp_avg", tensor("m")}}}}}, {"param_groups", groups({"x"})}}}});
  Catalog catalog = source->catalog();
  const Json bytes = torch::inline_form({DType::UInt8, {4}, std::vector<std::byte>(4)});
  catalog.client_state = {{"rng", bytes}, {"deep", {{"rows", Json::array({1, bytes})}}}};
  const auto file = convert(*convert(*source, catalog, "native"), "torch");
  const torch::TorchFile content(torch::whole_file(posix_storage(), file->path()));
  EXPECT_EQ(content.tensor(content.root().at("rng")).shape, Shape{4});
  EXPECT_EQ(content.tensor(content.root().at("deep").at("rows")[1]).dtype, DType::UInt8);
  EXPECT_EQ(file->catalog().client_state, catalog.client_state);
  EXPECT_THAT(file->losses(), IsEmpty());
  EXPECT_THAT(notes_of(*file), IsEmpty());
}

/// Every format, and every one after it. A file of UniShard's with names like those of a replica
/// tells whose they are; the "module." of a replica is not a name of the model.
TEST_F(ReadFile, AModuleThatIsCalledModuleKeepsItsNameThroughEveryFormat) {
  const auto source = open({{"model", {{"w", tensor("a")}, {"v", tensor("n")}}},
                            {"optimizer",
                             {{"state",
                               {{"w", {{"exp_avg", tensor("m")}, {"step", 2}}},
                                {"v", {{"exp_avg", tensor("b")}, {"step", 2}}}}},
                              {"param_groups", groups({"w", "v"})}}}});
  Catalog catalog = source->catalog();
  catalog.client_state = nullptr;
  constexpr std::array kFormats = {"native",  "deepspeed",  "deepspeed-universal", "dcp", "torch",
                                   "trainer", "accelerate", "safetensors",         "npz", "gguf",
                                   "hdf5"};
  for (const std::size_t parts : {1U, 2U}) {
    for (TensorInfo& tensor : catalog.tensors) tensor.fqn.insert(0, "module.");
    for (Json& name : catalog.groups[0]["params"]) name = "module." + name.get<std::string>();
    const std::vector<std::string> expected = loss_labels(catalog);
    for (const char* first : kFormats) {
      const auto made = convert(*source, catalog, first);
      ASSERT_EQ(loss_labels(made->catalog()), expected) << first;
      for (const char* second : std::span(kFormats).first(parts == 1 ? kFormats.size() : 0)) {
        const auto copy = convert(*made, second);
        EXPECT_EQ(loss_labels(copy->catalog()), expected) << first << " " << second;
        EXPECT_EQ(copy->catalog().groups[0]["params"], made->catalog().groups[0]["params"])
            << first << " " << second;
      }
    }
  }
}

/// A torch.save file of weights alone has no place to tell, as it is one of PyTorch's.
TEST_F(ReadFile, WeightsOfAModuleThatIsCalledModuleKeepItsName) {
  const auto source = open({{"w", tensor("a")}, {"v", tensor("n")}});
  Catalog catalog = source->catalog();
  catalog.producer = nullptr;
  for (TensorInfo& tensor : catalog.tensors) tensor.fqn.insert(0, "module.");
  for (const char* format : {"native", "dcp", "safetensors", "npz", "gguf", "hdf5"}) {
    const auto copy = convert(*source, catalog, format);
    EXPECT_EQ(loss_labels(copy->catalog()), loss_labels(catalog)) << format;
    EXPECT_THAT(copy->catalog().tensors[0].state, state::kWeights) << format;
  }
}

/// DeepSpeed saves the model itself. Lightning before 2.0 had wrapped it.
TEST_F(ReadFile, OnlyOldLightningHasModulesUnderDeepSpeedThatAreNotTheModels) {
  const auto source = open({{"model", {{"w", tensor("a")}}},
                            {"optimizer",
                             {{"state", {{"w", {{"exp_avg", tensor("m")}, {"step", 2}}}}},
                              {"param_groups", groups({"w"})}}}});
  Catalog catalog = source->catalog();
  for (TensorInfo& tensor : catalog.tensors) tensor.fqn = "module.w";
  catalog.groups[0]["params"] = {"module.w"};
  for (const auto& [version, name] :
       {std::pair<Json, std::string>{"1.7.7", "w"}, {"2.0.1", "module.w"}, {1, "module.w"}}) {
    catalog.client_state = {{"pytorch-lightning_version", version}};
    const auto copy = convert(*source, catalog, "deepspeed");
    EXPECT_EQ(copy->catalog().tensors[0].fqn, name) << version;
  }
}

TEST_F(ReadFile, NumbersThatNothingNamesAreNumbersAgain) {
  const Json state = dict({{0, {{"exp_avg", tensor("m")}}}, {1, {{"exp_avg", tensor("a")}}}});
  const auto source =
      open({{"model", {{"x", tensor("a")}, {"y", tensor("m")}}},
            {"optimizer", {{"state", state}, {"param_groups", groups(Json::array({0, 1}))}}}});
  const auto trainer = convert(*source, "trainer");
  const auto file = convert(*trainer, "torch");
  const torch::TorchFile content(torch::whole_file(posix_storage(), file->path()));
  const torch::Value states = content.root().at("optimizer").at("state");
  ASSERT_EQ(states.pair_count(), 2u);
  EXPECT_TRUE(states.key(0).is(torch::NodeKind::Int)) << "state.0 is no key of torch.optim";
}

TEST_F(ReadFile, NumbersOfAnOptimizerWithoutAStepAreNumbersAgain) {
  const auto source = open(
      {{"model", {{"x", tensor("a")}, {"y", tensor("m")}}},
       {"optimizer", {{"state", Json::object()}, {"param_groups", groups(Json::array({0, 1}))}}}});
  const auto trainer = convert(*source, "trainer");
  const auto file = convert(*trainer, "torch");
  const torch::TorchFile content(torch::whole_file(posix_storage(), file->path()));
  const torch::Value group = content.root().at("optimizer").at("param_groups")[0];
  EXPECT_TRUE(group.at("params")[0].is(torch::NodeKind::Int));
}

TEST_F(ReadFile, MomentsOfDifferentShapesHaveNames) {
  const Json state = dict({{0, {{"exp_avg", tensor("n")}}}, {1, {{"exp_avg", tensor("m")}}}});
  const auto source =
      open({{"model", {{"a", tensor("a")}, {"b", tensor("b")}}},
            {"optimizer", {{"state", state}, {"param_groups", groups(Json::array({0, 1}))}}}});
  EXPECT_THAT(loss_labels(source->catalog()),
              ElementsAre("a exp_avg", "a fp32", "b exp_avg", "b fp32"));
}

TEST_F(ReadFile, AnArrayOfNumpyBelowAModelIsALostWeight) {
  const auto source = open({{"model", {{"a", tensor("a")}, {"b", numpy_array()}}},
                            {"notes", {{"history", numpy_array()}}}});
  ASSERT_EQ(source->losses().size(), 1u) << notes_of(*source)[1];
  EXPECT_EQ(source->losses()[0].name, "model.b");
  EXPECT_EQ(source->losses()[0].role, Role::Weight);
  EXPECT_FALSE(source->losses()[0].is_kept);
}

TEST_F(ReadFile, WhatIsNoTensorInAStateDictIsALostWeight) {
  const Json counted = Json::array({1.5, Json::array({2, 3})});
  const Json pair = {{"$type", "tuple"}, {"items", {1.5, 2}}};
  const Json dtype = {
      {"$type", "object"},
      {"name", "numpy.dtype"},
      {"args", {"f4", false, true}},
      {"state", {{"$type", "tuple"}, {"items", {3, "<", nullptr, nullptr, nullptr, -1, -1, 0}}}}};
  const Json scalar = {{"$type", "object"},
                       {"name", "numpy.core.multiarray.scalar"},
                       {"args", {dtype, {{"$type", "bytes"}, {"hex", "00004040"}}}}};
  const Json model = {{"h.a", tensor("a")}, {"h.b", tensor("b")}, {"h.m", tensor("m")},
                      {"h.n", tensor("n")}, {"h.t", tensor("t")}, {"h.none", nullptr},
                      {"h.list", counted},  {"h.text", "row"},    {"h._extra_state", nullptr}};
  const std::vector<std::string> expected = {"h.none", "h.list"};
  const auto names = [](const Source& source) {
    std::vector<std::string> lost;
    for (const Loss& loss : source.losses()) {
      if (loss.role == Role::Weight) lost.push_back(loss.name);
    }
    return lost;
  };
  EXPECT_EQ(names(*open(model)), expected);
  Json training = {{"model", model}, {"epoch", 1}};
  EXPECT_THAT(names(*open(training)), ElementsAre("model.h.none", "model.h.list"));
  EXPECT_THAT(names(*open({{"h.a", tensor("a")},
                           {"h.b", tensor("b")},
                           {"h.m", tensor("m")},
                           {"h.tuple", pair},
                           {"h.scalar", scalar}})),
              testing::UnorderedElementsAre("h.tuple", "h.scalar"));
  EXPECT_THAT(names(*open({{"optim.param_groups.a.lr", 0.1}, {"optim.state.a.m", tensor("m")}})),
              IsEmpty())
      << "an optimizer in one flat dict";
}

Json storage() { return {{"$type", "persistent"}, {"id", Json::array({"storage"})}}; }

/// What a call that is not known makes of a storage.
Json rebuilt() {
  return {{"$type", "object"},
          {"name", "torch._utils._rebuild_new"},
          {"args", Json::array({storage(), 0})}};
}

std::vector<std::string> data_found(const Json& value) {
  Losses found;
  torch::find_unread_data(value, "m", found);
  std::vector<std::string> out;
  for (const Loss& loss : found) out.push_back(loss.name + (loss.is_kept ? " kept" : " lost"));
  return out;
}

TEST(UnreadData, IsFoundInEveryKindOfValue) {
  const Json array = numpy_array();
  EXPECT_THAT(data_found({{"a", Json::array({1, array})}}), ElementsAre("m.a.1 kept"));
  EXPECT_THAT(data_found({{"$type", "tuple"}, {"items", Json::array({array, storage()})}}),
              ElementsAre("m.0 kept", "m.1 lost"));
  EXPECT_THAT(data_found(dict({{0, storage()}})), ElementsAre("m.0 lost"));
  EXPECT_THAT(data_found({{"b", rebuilt()}}), ElementsAre("m.b lost"));
  EXPECT_THAT(data_found({{"$type", "object"},
                          {"name", "torch.storage._load_from_bytes"},
                          {"args", Json::array({{{"$type", "bytes"}, {"hex", "00"}}})}}),
              ElementsAre("m lost"));
  EXPECT_THAT(data_found({{"lr", 0.1}, {"names", Json::array({"a"})}}), IsEmpty());
}

TEST_F(ReadFile, AnArrayInAListBelowAModelIsALostWeight) {
  const auto source = open({{"model", {{"a", tensor("a")}, {"b", Json::array({numpy_array()})}}}});
  ASSERT_EQ(source->losses().size(), 1u);
  EXPECT_EQ(source->losses()[0].name, "model.b.0");
  EXPECT_EQ(source->losses()[0].role, Role::Weight);
  EXPECT_FALSE(source->losses()[0].is_kept);
}

TEST_F(ReadFile, AMemberOfAStateDictThatIsTooDeepIsALostWeight) {
  Json deep = tensor("b");
  for (int i = 0; i < 250; ++i) deep = {{"x", deep}};
  const auto source = open({{"a", tensor("a")}, {"b", deep}});
  ASSERT_EQ(source->losses().size(), 1u);
  EXPECT_EQ(source->losses()[0].role, Role::Weight);
}

TEST_F(ReadFile, AFileOfOtherWeightsBesideTheModelIsNamedAndNotTaken) {
  for (const char* name : {"value_head.safetensors", "ema_model.safetensors"}) {
    const Path folder = temp_.path() / name;
    std::filesystem::create_directory(folder);
    const auto source = open({{"b", tensor("b")}});
    const auto other =
        make_sink(posix_storage(), {.format = "safetensors", .path = folder / name, .tag = {}},
                  source->catalog());
    CopyPlan plan{.source = source.get(), .target = &source->catalog(), .tensor_map = {0}};
    copy(plan, *other, {});
    other->commit();
    save_torch(folder / "pytorch_model.bin", {{"a", tensor("a")}}, kTensors);
    const auto model = open_source(posix_storage(), folder);
    EXPECT_THAT(loss_labels(model->catalog()), ElementsAre("a weights"));
    ASSERT_EQ(model->losses().size(), 1u);
    EXPECT_EQ(model->losses()[0].role, Role::OtherModel);
    EXPECT_EQ(model->losses()[0].name, name);
  }
}

TEST_F(ReadFile, TwoFilesOfOneRankAreRefused) {
  for (const char* name : {"0", "1", "00"})
    save_torch(temp_.path() / fmt::format("model_world_size_2_rank_{}.pt", name),
               {{"a", tensor("a")}}, kTensors);
  EXPECT_THROW(open_source(posix_storage(), temp_.path()), Error);
}

TEST_F(ReadFile, FilesOfRanksMayHoldATrainingState) {
  const Json group = {{"lr", 0.5}, {"params", {0}}, {"param_names", {"a"}}};
  const Json optimizer = {{"state", dict({{0, {{"exp_avg", tensor("m")}}}})},
                          {"param_groups", Json::array({group})}};
  for (const int rank : {0, 1})
    save_torch(temp_.path() / fmt::format("model_world_size_2_rank_{}.pt", rank),
               {{"model", {{"a", tensor("a")}}}, {"optimizer", optimizer}, {"epoch", 4}}, kTensors);
  const auto source = open_source(posix_storage(), temp_.path());
  EXPECT_TRUE(source->catalog().find("a", state::kFp32));
  EXPECT_TRUE(source->catalog().find("a", "exp_avg"));
  EXPECT_EQ(source->catalog().groups[0]["lr"], 0.5);
  EXPECT_EQ(source->catalog().client_state["epoch"], 4);
}

TEST_F(ReadFile, ATensorThatOneRankAloneHasIsNoted) {
  for (const int rank : {0, 1}) {
    Json model = {{"a", tensor("a")}};
    if (rank == 1) model["ghost"] = tensor("m");
    save_torch(temp_.path() / fmt::format("model_world_size_2_rank_{}.pt", rank), model, kTensors);
  }
  EXPECT_THAT(open_source(posix_storage(), temp_.path())->notes(),
              Contains(HasSubstr("the file of rank 1 alone has \"model.ghost\"")));
}

/// As of a result that a filter has left nothing else in.
TEST(ReplicaNames, ThatTheOtherSideHasToAreItsOwn) {
  const auto catalog_of = [](const std::vector<std::string>& names) {
    Catalog catalog;
    for (const std::string& name : names) {
      TensorInfo tensor;
      tensor.fqn = name;
      tensor.state = state::kWeights;
      catalog.tensors.push_back(tensor);
    }
    return catalog;
  };
  const Catalog part = catalog_of({"module.a", "module.b"});
  EXPECT_TRUE(without_replica(part, catalog_of({"a", "b"})));
  EXPECT_FALSE(without_replica(part, catalog_of({"module.a", "module.b", "head"})));
}

TEST(OtherKeys, OfWhichOnlyTheBeginningIsThatOfAnOptimizerAreTheModels) {
  for (const char* key : {"optim.a", "optimizer.a", "optimizers.0.a", "optimizer_1.a", "optimG.a"})
    EXPECT_TRUE(dcp::is_beside_models(key, {})) << key;
  for (const char* key : {"optimal_transport.a", "optimus.a", "optimizerless.a"})
    EXPECT_FALSE(dcp::is_beside_models(key, {})) << key;
}

TEST_F(ReadFile, TheOptimizerInATupleIsNoWeight) {
  const Json optimizer = {{"state", dict({{0, {{"exp_avg", tensor("m")}}}})},
                          {"param_groups", groups(Json::array({0}))}};
  const auto source = open(Json::array({{{"a", tensor("a")}}, optimizer}));
  EXPECT_THAT(loss_labels(source->catalog()),
              ElementsAre("0.a weights", "1.state.0.exp_avg extra"));
}

}  // namespace
}  // namespace unishard::converters
