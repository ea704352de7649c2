// Training states in one torch.save file, written by torch 2.15 where they are golden files.
#include "unishard/converters/registry.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "containers/object_tree.hpp"
#include "containers/pickle_json.hpp"
#include "containers/pickle_writer.hpp"
#include "containers/shared_views.hpp"
#include "containers/torch_file.hpp"
#include "containers/torch_output.hpp"
#include "expect.hpp"
#include "read_source.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"
#include "torch_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters {
namespace {

const Path kFiles = Path(UNISHARD_TEST_DATA) / "golden/torch";

/// "fqn state" of each tensor.
std::vector<std::string> labels(const Catalog& catalog) {
  std::vector<std::string> out;
  for (const TensorInfo& tensor : catalog.tensors) out.push_back(tensor.fqn + ' ' + tensor.state);
  std::ranges::sort(out);
  return out;
}

const std::vector<std::string> kTrained = {
    "fc.bias exp_avg",    "fc.bias exp_avg_sq",    "fc.bias fp32",
    "fc.weight exp_avg",  "fc.weight exp_avg_sq",  "fc.weight fp32",
    "wte.weight exp_avg", "wte.weight exp_avg_sq", "wte.weight fp32",
};

/// Opens a file whose optimizer was given the parameters in the model's order.
std::unique_ptr<Source> open_in_order(const Path& path) {
  return open_source(posix_storage(), path, OpenOptions{.assume_model_order = true});
}

std::vector<float> floats(const Source& source, const std::string& fqn, std::string_view state) {
  const auto& tensors = source.catalog().tensors;
  const auto found = std::ranges::find_if(tensors, [&](const TensorInfo& tensor) {
    return tensor.fqn == fqn && tensor.state == state;
  });
  if (found == tensors.end()) {
    ADD_FAILURE() << "there is no " << fqn << " [" << state << "]";
    return {};
  }
  const auto bytes = read_all(source, static_cast<std::size_t>(found - tensors.begin()));
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

TEST(TrainingFile, HasParametersMomentsGroupsAndStep) {
  const auto source = open_source(posix_storage(), kFiles / "training.pt");
  const Catalog& catalog = source->catalog();
  std::vector<std::string> expected = kTrained;
  expected.emplace_back("rng extra");
  std::ranges::sort(expected);
  EXPECT_EQ(labels(catalog), expected);
  EXPECT_EQ(catalog.step, 3);
  ASSERT_EQ(catalog.aliases.size(), 1u);
  EXPECT_EQ(catalog.aliases[0].fqn, "head.weight");
  EXPECT_EQ(catalog.aliases[0].target, "wte.weight");
  ASSERT_EQ(catalog.groups.size(), 2u);
  EXPECT_EQ(catalog.groups[0]["params"], Json({"wte.weight", "fc.weight"}));
  EXPECT_EQ(catalog.groups[1]["params"], Json({"fc.bias"}));
  EXPECT_EQ(catalog.groups[0]["weight_decay"], 0.1);
  EXPECT_EQ(catalog.client_state["iter_num"], 3);
  EXPECT_EQ(catalog.client_state["config"]["lr"], 1e-3);
}

TEST(TrainingFile, OfATupleSaysThatItsOptimizerIsNotRead) {
  const std::map<std::string, Made> tensors = {{"w", {DType::Float32, {2}, {1, 2}}},
                                               {"m", {DType::Float32, {2}, {3, 4}}}};
  const Json model = {{"w", tensor("w")}};
  const Json optimizer = {{"state", with_number_keys({{"exp_avg", tensor("m")}})},
                          {"param_groups", Json::array({{{"params", Json::array({0})}}})}};
  const auto noted = [&](const Json& object) {
    const test::TempDir temp;
    save_torch(temp.path() / "a.pt", object, tensors);
    return notes_of(*open_source(posix_storage(), temp.path() / "a.pt"));
  };
  const Json items = Json::array({model, optimizer, 17});
  for (const Json& object : {Json{{"$type", "tuple"}, {"items", items}}, items,
                             Json{{"", model}, {"optimizer", optimizer}}}) {
    const auto notes = noted(object);
    ASSERT_FALSE(notes.empty()) << object;
    EXPECT_NE(notes[0].find("has the state of an optimizer"), std::string::npos) << notes[0];
  }
  EXPECT_TRUE(noted(Json::array({model})).empty());
}

/// A str of Python with half a surrogate pair, such as a file name that is not UTF-8.
TEST(TrainingFile, WithKeysThatAreNotUtf8IsReadAndWrittenAgain) {
  const test::TempDir temp;
  const auto pair = [](const char* hex, Json value) {
    return Json::array({{{"$type", "str"}, {"hex", hex}}, std::move(value)});
  };
  const auto dict = [](Json pairs) { return Json{{"$type", "builtins.dict"}, {"pairs", pairs}}; };
  const Json object = dict({Json::array({"model", dict({pair("61edb280", tensor("w"))})}),
                            pair("6bedb280", "value"), Json::array({"iter_num", 3})});
  save_torch(temp.path() / "a.pt", object, {{"w", {DType::Float32, {2}, {1, 2}}}});
  const auto source = open_source(posix_storage(), temp.path() / "a.pt");
  ASSERT_EQ(source->catalog().tensors.size(), 1u);
  EXPECT_EQ(source->catalog().tensors[0].fqn, "a\\udc80");
  EXPECT_EQ(source->catalog().client_state["k\\udc80"], "value");
}

TEST(TrainingFile, OfLightningHasTheSameState) {
  const auto source = open_source(posix_storage(), kFiles / "lightning.ckpt");
  const auto other = open_source(posix_storage(), kFiles / "training.pt");
  EXPECT_EQ(labels(source->catalog()), kTrained);
  EXPECT_EQ(source->catalog().client_state["global_step"], 3);
  for (const char* state : {"fp32", "exp_avg", "exp_avg_sq"})
    EXPECT_EQ(floats(*source, "fc.weight", state), floats(*other, "fc.weight", state)) << state;
}

// AdamW([b, a]) of two parameters of one shape: only the list of names tells which is which.
TEST(TrainingFile, NamesThatTheGroupsListCount) {
  const auto source = open_source(posix_storage(), kFiles / "listed_names.pt");
  EXPECT_EQ(source->catalog().groups[0]["params"], Json({"b", "a"}));
  EXPECT_EQ(floats(*source, "a", "exp_avg"), (std::vector<float>{1, 1}));
  EXPECT_EQ(floats(*source, "b", "exp_avg"), (std::vector<float>{2, 2}));
  EXPECT_TRUE(source->remarks().empty());
}

// The loss does not use `b`, so that the optimizer has no state for number 1.
TEST(TrainingFile, AParameterWithoutStateKeepsItsPlaceInTheOrder) {
  const auto source = open_in_order(kFiles / "unused_parameter.pt");
  EXPECT_THAT(labels(source->catalog()),
              testing::UnorderedElementsAre(
                  "a.weight fp32", "a.weight exp_avg", "a.weight exp_avg_sq", "b.weight weights",
                  "c.weight fp32", "c.weight exp_avg", "c.weight exp_avg_sq"));
  EXPECT_EQ(source->catalog().groups[0]["params"], Json({"a.weight", "b.weight", "c.weight"}));
  EXPECT_EQ(floats(*source, "a.weight", "exp_avg"), (std::vector<float>{1, 1}));
  EXPECT_EQ(floats(*source, "c.weight", "exp_avg"), (std::vector<float>{3, 3}));
  EXPECT_THAT(notes_of(*source), testing::IsEmpty());
  EXPECT_THAT(source->remarks(), testing::ElementsAre(testing::HasSubstr("have numbers"),
                                                      testing::HasSubstr("taken for frozen")));
}

using Sizes = std::vector<std::pair<std::string, std::uint64_t>>;

/// Opens a file with a model of vectors of these sizes, numbered moments of the sizes `moments`,
/// and further vectors below the key "loss".
std::unique_ptr<Source> open_numbered(const Path& file, const Sizes& model,
                                      const std::vector<std::uint64_t>& moments,
                                      const Sizes& further = {}) {
  Json weights = Json::object(), others = Json::object(), pairs = Json::array();
  Json numbers = Json::array();
  std::map<std::string, Made> tensors;
  const auto add = [&](Json& dict, const std::string& name, std::uint64_t size) {
    dict[name] = tensor(name);
    tensors[name] = {DType::Float32, {size}, std::vector<float>(size, 1)};
  };
  for (const auto& [name, size] : model) add(weights, name, size);
  for (const auto& [name, size] : further) add(others, name, size);
  for (const std::uint64_t size : moments) {
    Json states = Json::object();
    const std::string name = fmt::format("moment {}", numbers.size());
    add(states, name, size);
    pairs.push_back(Json::array({numbers.size(), {{"exp_avg", states[name]}}}));
    numbers.push_back(numbers.size());
  }
  const Json states = {{"$type", "builtins.dict"}, {"pairs", pairs}};
  const Json groups = Json::array({{{"lr", 0.5}, {"params", numbers}}});
  save_torch(file,
             {{"model", weights},
              {"loss", others},
              {"optimizer", {{"state", states}, {"param_groups", groups}}}},
             tensors);
  return open_source(posix_storage(), file);
}

TEST(TrainingFile, GivesNoMomentsOfALostParameterToABuffer) {
  const auto names = [](const Sizes& model) {
    const test::TempDir temp;
    return open_numbered(temp.path() / "a.pt", model, {4, 8})->catalog().groups[0]["params"];
  };
  const Json numbers = {"state.0", "state.1"};
  EXPECT_EQ(names({{"scale", 4}, {"w", 8}}), Json({"scale", "w"}));
  EXPECT_EQ(names({{"table", 4}, {"w", 8}, {"other", 5}}), numbers) << "one is no parameter";
  EXPECT_EQ(names({{"norm.mean", 4}, {"w", 8}}), numbers);
}

TEST(TrainingFile, WithMoreNumberedStatesThanWeightsLacksAWeight) {
  const auto lost = [](const Sizes& model, const Sizes& further) {
    const test::TempDir temp;
    return !open_numbered(temp.path() / "a.pt", model, {4, 4, 8}, further)->losses().empty();
  };
  EXPECT_TRUE(lost({{"w", 8}, {"b", 4}}, {}));
  EXPECT_TRUE(lost({{"w", 8}, {"b", 4}, {"empty", 0}}, {{"other", 3}}));
  EXPECT_FALSE(lost({{"w", 8}, {"b", 4}, {"c", 4}}, {}));
  EXPECT_FALSE(lost({{"w", 8}, {"b", 4}}, {{"weight", 4}})) << "the loss has the weight";
}

TEST(TrainingFile, OfAnOptimizerAloneHasNoModel) {
  const auto source = open_source(posix_storage(), kFiles / "optimizer.pt");
  EXPECT_EQ(
      labels(source->catalog()),
      (std::vector<std::string>{"state.0 exp_avg", "state.0 exp_avg_sq", "state.1 exp_avg",
                                "state.1 exp_avg_sq", "state.2 exp_avg", "state.2 exp_avg_sq"}));
  EXPECT_EQ(source->catalog().step, 3);
}

TEST(TrainingFile, ALearningRateInATensorIsASettingOfItsGroup) {
  const auto source = open_source(posix_storage(), kFiles / "tensor_lr.pt");
  const Catalog& catalog = source->catalog();
  ASSERT_EQ(catalog.groups.size(), 1u) << catalog.groups.dump();
  EXPECT_FLOAT_EQ(catalog.groups[0]["lr"].get<float>(), 1e-3f);
  EXPECT_EQ(catalog.groups[0]["params"], Json({"weight", "bias"}));
  EXPECT_EQ(catalog.tensors.size(), 6u);
  EXPECT_FALSE(source->layout().is_null());
}

/// Copies a source to another format as a conversion does. `target` is the source's catalog with
/// other sections.
std::unique_ptr<Sink> copy_as(const std::string& format, const Source& source, const Path& output,
                              const Catalog& target, const Json& layout = {}) {
  auto sink = make_sink(posix_storage(),
                        {.format = format, .path = output, .tag = "run", .layout = layout}, target);
  CopyPlan plan{.source = &source, .target = &source.catalog(), .tensor_map = {}};
  for (std::size_t i = 0; i < source.catalog().tensors.size(); ++i) plan.tensor_map.push_back(i);
  copy(plan, *sink, {});
  sink->commit();
  return sink;
}
std::unique_ptr<Sink> copy_as(const std::string& format, const Source& source, const Path& output,
                              const Json& layout = {}) {
  return copy_as(format, source, output, source.catalog(), layout);
}

/// Returns the catalog of a training that went on: what it records of the file's values is old.
Catalog of_more_training(Catalog catalog) {
  if (catalog.producer.is_object() && catalog.producer.contains("torch_arrangement"))
    catalog.producer["torch_arrangement"].erase("file");
  return catalog;
}

TEST(TrainingFile, KeepsItsLayoutInAnotherTorchFile) {
  for (const char* name :
       {"training.pt", "lightning.ckpt", "optimizer.pt", "tensor_lr.pt", "unused_parameter.pt"}) {
    const test::TempDir folder;
    const Path copy = folder.path() / "copy.pt";
    const auto source = open_source(posix_storage(), kFiles / name);
    copy_as("torch", *source, copy, source->layout());
    const auto again = open_source(posix_storage(), copy);
    EXPECT_EQ(again->layout(), source->layout()) << name;
    ASSERT_EQ(labels(again->catalog()), labels(source->catalog())) << name;
    for (std::size_t i = 0; i < source->catalog().tensors.size(); ++i)
      EXPECT_EQ(read_all(*again, i), read_all(*source, i)) << name;
  }
}

TEST(TrainingFile, LosesOnlyTheObjectThatCannotBeWritten) {
  const test::TempDir folder;
  const auto source = open_source(posix_storage(), kFiles / "odd_object.pt");
  const auto sink = copy_as("torch", *source, folder.path() / "copy.pt", source->layout());
  ASSERT_EQ(sink->notes().size(), 1u);
  EXPECT_THAT(sink->notes()[0], testing::StartsWith("args.odd: "));
  Json expected = source->layout();
  expected["object"]["args"].erase("odd");
  EXPECT_EQ(open_source(posix_storage(), folder.path() / "copy.pt")->layout(), expected);
}

TEST(TrainingFile, IsWrittenAsTheCatalogRecordsItWhereTheLayoutDoesNotFit) {
  const test::TempDir folder;
  const auto source = open_source(posix_storage(), kFiles / "training.pt");
  Json layout = source->layout();
  layout["tensors"][0][2] = "gone";
  copy_as("torch", *source, folder.path() / "copy.pt", layout);
  const auto again = open_source(posix_storage(), folder.path() / "copy.pt");
  EXPECT_EQ(labels(again->catalog()), labels(source->catalog()));
  EXPECT_TRUE(again->layout().is_null());
}

Json tuple(Json items) { return {{"$type", "tuple"}, {"items", std::move(items)}}; }

/// A dict whose keys are 0, 1, ...
Json numbered(const std::vector<Json>& values) {
  Json pairs = Json::array();
  for (std::size_t i = 0; i < values.size(); ++i) pairs.push_back(Json::array({i, values[i]}));
  return {{"$type", "builtins.dict"}, {"pairs", std::move(pairs)}};
}

const std::map<std::string, Made> kTensors = {
    {"a", {DType::Float32, {2}, {1, 2}}},       {"b", {DType::Float32, {3}, {3, 4, 5}}},
    {"a.m", {DType::Float32, {2}, {6, 7}}},     {"a.v", {DType::Float32, {2}, {11, 12}}},
    {"b.m", {DType::Float32, {3}, {8, 9, 10}}}, {"step", {DType::Float32, {}, {5}}},
    {"b.step", {DType::Float32, {}, {5}}}};

/// A training file with the model a, b and the given states of both.
std::unique_ptr<Source> open_training(const test::TempDir& folder, const Json& of_a,
                                      const Json& of_b, const char* name = "in.pt") {
  const Json groups = Json::array({{{"lr", 0.1}, {"params", Json::array({0, 1})}}});
  const Json object = {
      {"model", {{"a", tensor("a")}, {"b", tensor("b")}}},
      {"optimizer", {{"state", numbered({of_a, of_b})}, {"param_groups", groups}}}};
  save_torch(folder.path() / name, object, kTensors);
  return open_source(posix_storage(), folder.path() / name);
}

/// The states that another format's writer gives the optimizer in a torch.save file, by number or
/// name.
Json written_states(const Path& file) {
  const torch::TorchFile opened(torch::whole_file(posix_storage(), file));
  Json object = torch::to_json(opened.root());
  return object.contains("optimizer") ? object["optimizer"]["state"] : object["state"];
}

/// The states of the parameters a and b, which the optimizer knows by numbers or names.
Json named_states(const Path& file) {
  Json states = written_states(file);
  if (!states.contains("pairs")) return states;
  const Json& pairs = states["pairs"];
  EXPECT_EQ(pairs[0][0], 0);
  return {{"a", pairs[0][1]}, {"b", pairs[1][1]}};
}

TEST(TrainingFile, KeepsOptimizerStatesThatAreNoTensors) {
  const test::TempDir folder;
  const Json of_a = {{"m", tensor("a.m")},
                     {"cnt", 7},
                     {"rms", 0.5},
                     {"tag", "muon"},
                     {"flag", true},
                     {"none", nullptr},
                     {"betas", tuple({0.9, 0.95})}};
  const Json of_b = {{"m", tensor("b.m")}, {"cnt", 8}};
  const auto source = open_training(folder, of_a, of_b);
  const Json& scalars = source->catalog().client_state["optimizer_scalars"];
  EXPECT_EQ(scalars["cnt"], (Json{{"a", 7}, {"b", 8}}));
  EXPECT_EQ(scalars["betas"]["a"], tuple({0.9, 0.95}));
  EXPECT_THAT(notes_of(*source), testing::IsEmpty());
  for (const char* format : {"torch", "trainer", "dcp"}) {
    const Path first = folder.path() / format / "first", again = folder.path() / format / "out.pt";
    std::filesystem::create_directories(first.parent_path());
    EXPECT_THAT(copy_as(format, *source, first)->notes(), testing::IsEmpty()) << format;
    const auto between = open_source_as(posix_storage(), format, first);
    EXPECT_EQ(between->catalog().client_state, source->catalog().client_state) << format;
    copy_as("torch", *between, again);
    const Json states = named_states(again);
    Json expected = of_a;
    expected.erase("m");
    Json found = states["a"];
    EXPECT_EQ(found.erase("m"), 1u);
    EXPECT_EQ(found, expected) << format;  // and no step, which the optimizer never had
  }
  const Json numbers = written_states(folder.path() / "trainer/first/optimizer.pt");
  EXPECT_EQ(numbers["pairs"][0][1]["cnt"], 7);
  EXPECT_EQ(numbers["pairs"][1][1]["cnt"], 8);
  EXPECT_FALSE(numbers["pairs"][0][1].contains("step"));
}

/// A scalar of numpy, as Python pickles it.
Json numpy_scalar(const char* type, const char* hex) {
  const Json none = nullptr;
  return {
      {"$type", "object"},
      {"name", "numpy.core.multiarray.scalar"},
      {"args", Json::array({{{"$type", "object"},
                             {"name", "numpy.dtype"},
                             {"args", Json::array({type, false, true})},
                             {"state", tuple(Json::array({3, "<", none, none, none, -1, -1, 0}))}},
                            {{"$type", "bytes"}, {"hex", hex}}})}};
}

/// A training of Adam with these settings, in which "object" is an object of a class.
std::unique_ptr<Source> open_adam(const test::TempDir& folder, Json settings, const Json& step) {
  std::map<std::string, Made> tensors = kTensors;
  tensors["object"] = {DType::Float32, {}, {}, "my.Strategy"};
  const Json of_a = {{"step", step}, {"exp_avg", tensor("a.m")}, {"exp_avg_sq", tensor("a.v")}};
  const Json of_b = {{"step", step}, {"exp_avg", tensor("b.m")}, {"exp_avg_sq", tensor("b.m")}};
  settings["params"] = Json::array({0, 1});
  save_torch(folder.path() / "in.pt",
             {{"model", {{"a", tensor("a")}, {"b", tensor("b")}}},
              {"optimizer",
               {{"state", numbered({of_a, of_b})}, {"param_groups", Json::array({settings})}}}},
             tensors);
  return open_in_order(folder.path() / "in.pt");
}

TEST(TrainingFile, LosesOfASettingOnlyTheObjectInIt) {
  const test::TempDir folder;
  const auto source = open_adam(folder,
                                {{"lr", 0.25},
                                 {"strategy", tensor("object")},
                                 {"betas", tuple({0.5, 0.75})},
                                 {"layers", Json::array({1, tensor("object"), 3})},
                                 {"scale", numpy_scalar("f8", "000000000000e03f")}},
                                5);
  const Json expected = {{"lr", 0.25},
                         {"betas", Json::array({0.5, 0.75})},
                         {"layers", Json::array({1, nullptr, 3})},
                         {"scale", 0.5},
                         {"params", Json::array({"a", "b"})}};
  EXPECT_EQ(source->catalog().groups[0].dump(), expected.dump());
  const auto lines = notes_of(*source);
  EXPECT_THAT(
      lines, testing::Contains(testing::AllOf(
                 testing::HasSubstr("left out: setting \"param_groups.0.strategy\": "),
                 testing::HasSubstr("an object of the class"), testing::HasSubstr("my.Strategy"))));
  EXPECT_THAT(lines, testing::Contains(testing::HasSubstr("param_groups.0.layers.1\": ")));
  EXPECT_THAT(lines,
              testing::Contains(testing::HasSubstr("param_groups.0.scale: numbers of numpy")));
  for (const char* format : {"torch", "native", "dcp", "hdf5", "trainer", "accelerate", "deepspeed",
                             "deepspeed-universal"}) {
    const Path between = folder.path() / format / "first", back = folder.path() / format / "out.pt";
    std::filesystem::create_directories(between.parent_path());
    const bool is_torch = std::string_view(format) == "torch";
    copy_as(format, *source, between, is_torch ? source->layout() : Json());
    const auto read = open_source_as(posix_storage(), format, between);
    copy_as("torch", *read, back);
    for (const Json& group :
         {read->catalog().groups[0], open_source(posix_storage(), back)->catalog().groups[0]}) {
      for (const auto& [key, value] : expected.items())
        EXPECT_EQ(group.value(key, Json()), value) << format << ": " << key;
      EXPECT_FALSE(group.contains("strategy")) << format;
    }
  }
}

TEST(TrainingFile, WithoutASettingOfAdamGetsTheDefaultWithALine) {
  const test::TempDir folder;
  const auto source = open_adam(
      folder, {{"lr", 0.25}, {"betas", tensor("object")}, {"eps", 1e-6}, {"weight_decay", 0.0}}, 5);
  for (const char* format : {"dcp", "trainer", "accelerate", "deepspeed"})
    EXPECT_THAT(copy_as(format, *source, folder.path() / format)->notes(),
                testing::Contains(testing::HasSubstr("betas ([0.9,0.999])")))
        << format;
}

TEST(TrainingFile, MayCountStepsInNumbersOfNumpy) {
  const test::TempDir folder;
  const auto source = open_adam(folder, {{"lr", 0.25}, {"betas", tuple({0.5, 0.75})}},
                                numpy_scalar("i8", "0200000000000000"));
  EXPECT_EQ(source->catalog().step, 2);
  EXPECT_THAT(source->remarks(), testing::Not(testing::Contains(testing::HasSubstr("no steps"))));
  copy_as("trainer", *source, folder.path() / "run");
  EXPECT_EQ(open_source(posix_storage(), folder.path() / "run")->catalog().step, 2);
}

TEST(TrainingFile, OfAnOptimizerThatDoesNotCountGetsNoStep) {
  const test::TempDir folder;
  const auto source = open_training(folder, {{"z", tensor("a.m")}, {"exp_avg_sq", tensor("a.v")}},
                                    {{"z", tensor("b.m")}, {"exp_avg_sq", tensor("b.m")}});
  copy_as("native", *source, folder.path() / "run");
  copy_as("torch", *open_source(posix_storage(), folder.path() / "run"), folder.path() / "out.pt");
  EXPECT_FALSE(named_states(folder.path() / "out.pt")["a"].contains("step"));
}

TEST(TrainingFile, KeepsTheKindOfStepCounters) {
  const test::TempDir folder;
  const Json counts = {{"step", 3}, {"m", tensor("a.m")}};
  const Json in_a_tensor = {{"step", tensor("step")}, {"m", tensor("b.m")}};
  const auto source = open_training(folder, counts, in_a_tensor);
  EXPECT_EQ(source->catalog().step, 5);
  for (const char* format : {"torch", "dcp"}) {
    copy_as(format, *source, folder.path() / format);
    const auto between = open_source_as(posix_storage(), format, folder.path() / format);
    const Path again = folder.path() / (std::string(format) + ".pt");
    copy_as("torch", *between, again);
    const Json states = named_states(again);
    EXPECT_EQ(states["a"]["step"], 3) << format;
    EXPECT_TRUE(states["b"]["step"].contains("$tensor")) << format;
  }
}

TEST(TrainingFile, AStateThatOnlyOtherParametersCountHasNoStep) {
  const test::TempDir folder;
  const auto source = open_training(folder, {{"momentum_buffer", tensor("a.m")}},
                                    {{"step", tensor("step")}, {"m", tensor("b.m")}});
  copy_as("torch", *source, folder.path() / "out.pt");
  const Json states = named_states(folder.path() / "out.pt");
  EXPECT_FALSE(states["a"].contains("step"));
  EXPECT_TRUE(states["b"].contains("step"));
}

TEST(TrainingFile, ACopyOfTheWeightsIsNotTheModel) {
  const test::TempDir folder;
  const Json groups = Json::array({{{"lr", 0.1}, {"params", Json::array({"a"})}}});
  const Json optimizer = {
      {"state", {{"a", {{"exp_avg", tensor("a.m")}, {"exp_avg_sq", tensor("a.m")}}}}},
      {"param_groups", groups}};
  std::map<std::string, Made> tensors = kTensors;
  tensors["copy"] = {DType::Float32, {2}, {101, 102}};
  const auto model_of = [&](const char* model, const char* other) {
    const Json object = {
        {other, {{"a", tensor("copy")}}}, {model, {{"a", tensor("a")}}}, {"optim", optimizer}};
    const Path file = folder.path() / (std::string(model) + other + ".pt");
    save_torch(file, object, tensors);
    return open_source(posix_storage(), file);
  };
  for (const auto& [model, other] : {std::pair{"model", "ema"},
                                     {"model", "best_model"},
                                     {"state_dict", "averaged"},
                                     {"net", "ema"},
                                     {"params", "ema_params"},
                                     {"student", "teacher"},
                                     {"model", "init"}}) {
    const auto source = model_of(model, other);
    EXPECT_EQ(floats(*source, "a", "fp32"), (std::vector<float>{1, 2})) << model << ' ' << other;
    EXPECT_THAT(source->remarks(), testing::IsEmpty()) << model << ' ' << other;
    EXPECT_EQ(floats(*source, std::string(other) + ".a", "extra"), (std::vector<float>{101, 102}));
  }
  EXPECT_THAT(model_of("north", "south")->remarks(),
              testing::ElementsAre(testing::HasSubstr("south. is taken for the model")));
}

// SGD without momentum says no more than how many parameters it has.
TEST(TrainingFile, TensorsBesideTheModelAreNotTheModel) {
  std::map<std::string, Made> tensors = kTensors;
  tensors["best"] = {DType::Float32, {}, {1}};
  tensors["rng"] = {DType::UInt8, {2}, {1, 2}};
  const Json optimizer = {
      {"state", {{"$type", "builtins.dict"}, {"pairs", Json::array()}}},
      {"param_groups", Json::array({{{"lr", 0.1}, {"params", Json::array({0})}}})}};
  const Json object = {{"net", {{"a", tensor("a")}}},
                       {"opt", optimizer},
                       {"best", tensor("best")},
                       {"rng", tensor("rng")},
                       {"ema", {{"a", tensor("a")}}}};
  const test::TempDir folder;
  save_torch(folder.path() / "in.pt", object, tensors);
  const auto source = open_source(posix_storage(), folder.path() / "in.pt");
  EXPECT_THAT(labels(source->catalog()),
              testing::AllOf(testing::Contains("a weights"), testing::Contains("best extra"),
                             testing::Contains("rng extra")));
}

/// An optimizer of the parameters a, with a moment of two elements for each.
Json optimizer_of(const char* moment, bool is_numbered) {
  const Json name = is_numbered ? Json(0) : Json("a");
  const Json states = {{"exp_avg", tensor(moment)}, {"exp_avg_sq", tensor(moment)}};
  const Json groups = Json::array({{{"lr", 0.1}, {"params", Json::array({name})}}});
  return {{"state", is_numbered ? with_number_keys(states) : Json{{"a", states}}},
          {"param_groups", groups}};
}

/// A file in which "b" is a second name of "a", and the optimizer names its states as given.
std::unique_ptr<Source> open_tied(const test::TempDir& folder, const Json& states) {
  Json params = Json::array();
  for (const auto& [name, state] : states.items()) params.push_back(name);
  const Json object = {
      {"model", {{"a", tensor("a")}, {"b", tensor("a")}}},
      {"optimizer",
       {{"state", states}, {"param_groups", Json::array({{{"lr", 0.1}, {"params", params}}})}}}};
  save_torch(folder.path() / "in.pt", object, kTensors);
  return open_source(posix_storage(), folder.path() / "in.pt");
}

TEST(TiedNames, OfWhichTheOptimizerKnowsOneOrBothAreOneParameter) {
  const Json m = {{"m", tensor("a.m")}}, v = {{"m", tensor("a.v")}};
  for (const Json& states : {Json{{"a", m}}, Json{{"b", m}}, Json{{"a", m}, {"b", m}}}) {
    const test::TempDir folder;
    const auto source = open_tied(folder, states);
    EXPECT_THAT(labels(source->catalog()), testing::ElementsAre("a fp32", "a m")) << states.dump();
    EXPECT_EQ(source->catalog().groups[0]["params"], Json({"a"}));
    EXPECT_EQ(source->catalog().aliases.at(0).fqn, "b");
    copy_as("torch", *source, folder.path() / "out.pt", source->layout());
    EXPECT_EQ(written_states(folder.path() / "out.pt").size(), states.size());
    copy_as("deepspeed", *source, folder.path() / "run");
  }
  const test::TempDir folder;
  const auto source = open_tied(folder, {{"a", m}, {"b", v}});
  EXPECT_THAT(labels(source->catalog()),
              testing::ElementsAre("a fp32", "a m", "optimizer.state.b.m extra"));
  EXPECT_THAT(source->remarks(), testing::ElementsAre(testing::HasSubstr("kept as a value")));
  copy_as("torch", *source, folder.path() / "out.pt", source->layout());
  EXPECT_EQ(written_states(folder.path() / "out.pt").size(), 2u);
}

TEST(OddNames, OfParametersAreNamesAndNoNumbers) {
  const Json states = {{"m", tensor("a.m")}};
  for (const std::string name : {"0", "state.0", "7"}) {
    const test::TempDir folder;
    const Json object = {
        {"model", {{"x", tensor("b")}, {name, tensor("a")}}},
        {"optimizer",
         {{"state", {{name, states}}},
          {"param_groups", Json::array({{{"lr", 0.1}, {"params", Json::array({name})}}})}}}};
    save_torch(folder.path() / "in.pt", object, kTensors);
    const auto source = open_source(posix_storage(), folder.path() / "in.pt");
    EXPECT_THAT(labels(source->catalog()),
                testing::UnorderedElementsAre("x weights", name + " fp32", name + " m"));
    EXPECT_THAT(source->remarks(), testing::IsEmpty());
    EXPECT_THAT(notes_of(*source), testing::IsEmpty());
  }
}

TEST(OddNames, TheEmptyNameIsGivenOne) {
  const test::TempDir folder;
  const Json object = {
      {"model", {{"x", tensor("b")}, {"", tensor("a")}}},
      {"optimizer",
       {{"state", {{"", {{"m", tensor("a.m")}}}}},
        {"param_groups", Json::array({{{"lr", 0.1}, {"params", Json::array({""})}}})}}}};
  save_torch(folder.path() / "in.pt", object, kTensors);
  const auto source = open_source(posix_storage(), folder.path() / "in.pt");
  EXPECT_THAT(labels(source->catalog()),
              testing::UnorderedElementsAre("x weights", "tensor fp32", "tensor m"));
  EXPECT_EQ(source->catalog().groups[0]["params"], Json({"tensor"}));
  EXPECT_THAT(notes_of(*source), testing::ElementsAre(testing::HasSubstr("the empty text")));
  copy_as("torch", *source, folder.path() / "out.pt", source->layout());
  const torch::TorchFile out(torch::whole_file(posix_storage(), folder.path() / "out.pt"));
  EXPECT_TRUE(torch::to_json(out.root())["model"].contains(""));
}

TEST(OddNames, AKeyThatIsNoTextIsSaid) {
  const test::TempDir folder;
  const Json key = {{"$type", "bytes"}, {"hex", "772e62"}};
  const Json object = {{"$type", "builtins.dict"},
                       {"pairs", Json::array({Json::array({key, tensor("a")})})}};
  save_torch(folder.path() / "in.pt", object, kTensors);
  const auto source = open_source(posix_storage(), folder.path() / "in.pt");
  EXPECT_THAT(labels(source->catalog()), testing::ElementsAre("w.b weights"));
  EXPECT_THAT(notes_of(*source),
              testing::Contains(testing::HasSubstr("w.b: its key is bytes, and no text")));
}

class SeveralOptimizers : public testing::Test {
 protected:
  std::unique_ptr<Source> open(const Json& object) {
    std::map<std::string, Made> tensors = kTensors;
    tensors["other"] = {DType::Float32, {2}, {101, 102}};
    tensors["other.m"] = {DType::Float32, {2}, {103, 104}};
    const Path file = folder_.path() / fmt::format("{}.pt", files_++);
    save_torch(file, object, tensors);
    return open_source(posix_storage(), file);
  }
  /// The object of the file that a conversion to the same format makes.
  Json copied(const Source& source) {
    const Path out = folder_.path() / fmt::format("{}.pt", files_++);
    copy_as("torch", source, out, source.layout());
    const torch::TorchFile file(torch::whole_file(posix_storage(), out));
    return torch::describe(file.root(), file.pickle().bytes().size()).content;
  }
  const test::TempDir folder_;
  int files_ = 0;
};

TEST_F(SeveralOptimizers, HaveTheirOwnModels) {
  for (const bool is_numbered : {false, true}) {
    for (const auto& [models, optimizers] :
         {std::pair{std::pair{"gen", "disc"}, std::pair{"opt_g", "opt_d"}},
          {{"netD", "netG"}, {"optimizerD", "optimizerG"}},
          {{"actor", "critic"}, {"critic_optimizer", "actor_optimizer"}}}) {
      const bool is_swapped = std::string(models.first) == "actor";
      const char *m = "a.m", *other = "other.m";
      const Json object = {{models.first, {{"a", tensor("a")}}},
                           {models.second, {{"a", tensor("other")}}},
                           {"ema", {{"a", tensor("b")}}},
                           {optimizers.first, optimizer_of(is_swapped ? other : m, is_numbered)},
                           {optimizers.second, optimizer_of(is_swapped ? m : other, is_numbered)}};
      const auto source = open(object);
      const std::string one = std::string(models.first) + ".a",
                        two = std::string(models.second) + ".a";
      EXPECT_THAT(labels(source->catalog()),
                  testing::UnorderedElementsAre(
                      one + " fp32", one + " exp_avg", one + " exp_avg_sq", two + " fp32",
                      two + " exp_avg", two + " exp_avg_sq", "ema.a extra"));
      EXPECT_EQ(floats(*source, one, "exp_avg"), kTensors.at("a.m").values);
      EXPECT_EQ(floats(*source, two, "exp_avg"), (std::vector<float>{103, 104}));
      EXPECT_EQ(source->catalog().groups.size(), 2u);
      EXPECT_EQ(copied(*source).size(), object.size());
      EXPECT_EQ(copied(*source)[optimizers.first],
                open(object)->layout()["object"][optimizers.first]);
    }
  }
}

TEST_F(SeveralOptimizers, AreFoundInLists) {
  const Json object = {
      {"models", Json::array({{{"a", tensor("a")}}, {{"a", tensor("other")}}})},
      {"optimizers", Json::array({optimizer_of("a.m", true), optimizer_of("other.m", true)})}};
  const auto source = open(object);
  EXPECT_EQ(floats(*source, "models.1.a", "exp_avg"), (std::vector<float>{103, 104}));
  EXPECT_EQ(copied(*source), source->layout()["object"]);
}

TEST_F(SeveralOptimizers, OfOneModelHaveTheirOwnParameters) {
  Json second = optimizer_of("b.m", false);
  second["state"] = {{"b", second["state"]["a"]}};
  second["param_groups"][0]["params"] = Json::array({"b"});
  const auto source = open({{"model", {{"a", tensor("a")}, {"b", tensor("b")}}},
                            {"optimizers", Json::array({optimizer_of("a.m", false), second})}});
  EXPECT_THAT(labels(source->catalog()),
              testing::UnorderedElementsAre("a fp32", "a exp_avg", "a exp_avg_sq", "b fp32",
                                            "b exp_avg", "b exp_avg_sq"));
  EXPECT_THAT(source->remarks(), testing::IsEmpty());
}

// One of them is named as the model's by both, so only one can be.
TEST_F(SeveralOptimizers, ThatCannotBeToldApartAreKeptAsValues) {
  const auto both = open(
      {{"model", {{"a", tensor("a")}}},
       {"optimizers", Json::array({optimizer_of("a.m", false), optimizer_of("other.m", false)})}});
  EXPECT_THAT(labels(both->catalog()),
              testing::UnorderedElementsAre("a fp32", "a exp_avg", "a exp_avg_sq",
                                            "optimizers.1.state.a.exp_avg extra",
                                            "optimizers.1.state.a.exp_avg_sq extra"));
  EXPECT_THAT(both->remarks(), testing::ElementsAre(testing::StartsWith("optimizers.1: nothing")));
  EXPECT_EQ(both->catalog().client_state["optimizers"]["1"]["param_groups"][0]["params"],
            Json::array({"a"}));
  EXPECT_EQ(copied(*both), both->layout()["object"]);
  const auto neither = open({{"x", {{"a", tensor("a")}}},
                             {"y", {{"a", tensor("other")}}},
                             {"opt_1", optimizer_of("a.m", false)},
                             {"opt_2", optimizer_of("other.m", false)}});
  EXPECT_THAT(
      labels(neither->catalog()),
      testing::UnorderedElementsAre("x.a weights", "y.a weights", "opt_1.state.a.exp_avg extra",
                                    "opt_1.state.a.exp_avg_sq extra", "opt_2.state.a.exp_avg extra",
                                    "opt_2.state.a.exp_avg_sq extra"));
  EXPECT_EQ(copied(*neither), neither->layout()["object"]);
}

TEST(TrainingFile, WithAFlattenedOptimizerHasItsMoments) {
  const test::TempDir folder;
  const Json optimizer = {{"state.a.exp_avg", tensor("a.m")},
                          {"state.a.exp_avg_sq", tensor("a.v")},
                          {"state.a.step", tensor("step")},
                          {"param_groups.a.lr", 0.25}};
  Json flat = {
      {"a", tensor("a")}, {"b", tensor("b")}, {"train_state", {{"step", tensor("b.step")}}}};
  flat.update(optimizer);
  save_torch(folder.path() / "flat.pt", flat, kTensors);
  save_torch(folder.path() / "nested.pt",
             {{"model", {{"a", tensor("a")}, {"b", tensor("b")}}}, {"optim", optimizer}}, kTensors);
  for (const char* name : {"flat.pt", "nested.pt"}) {
    const auto source = open_source(posix_storage(), folder.path() / name);
    EXPECT_THAT(labels(source->catalog()),
                testing::UnorderedElementsAre("a fp32", "a exp_avg", "a exp_avg_sq", "b weights"))
        << name;
    EXPECT_EQ(source->catalog().step, 5) << name;
    ASSERT_EQ(source->catalog().groups.size(), 1u) << name;
    EXPECT_EQ(source->catalog().groups[0]["lr"], 0.25) << name;
  }
  const auto flat_file = open_source(posix_storage(), folder.path() / "flat.pt");
  EXPECT_EQ(flat_file->catalog().client_state["train_state"]["step"]["$type"], "torch.Tensor");
}

/// Everything in a torch.save file but UniShard's own key.
Json written_object(const Path& file) {
  const torch::TorchFile opened(torch::whole_file(posix_storage(), file));
  Json object = torch::to_json(opened.root());
  object.erase("unishard");
  if (object.contains("pairs")) {
    Json pairs = Json::array();
    for (const Json& pair : object["pairs"]) {
      if (pair[0] != "unishard") pairs.push_back(pair);
    }
    object["pairs"] = std::move(pairs);
  }
  return object;
}

// torch.save({name: parameter}): a dict of parameters, of which some are frozen.
TEST(TrainingFile, AFlatDictOfParametersComesBack) {
  const test::TempDir folder;
  Json frozen = tensor("b"), trained = tensor("a");
  frozen["parameter"] = trained["parameter"] = trained["requires_grad"] = true;
  const Json object = {{"a", trained}, {"b", frozen}, {"b.m", tensor("b.m")}};
  save_torch(folder.path() / "in.pt", object, kTensors);
  const auto source = open_source(posix_storage(), folder.path() / "in.pt");
  EXPECT_TRUE(source->catalog().client_state.is_null());
  for (const char* format : {"torch", "native", "dcp"}) {
    const Path between = folder.path() / format,
               back = folder.path() / (std::string(format) + ".pt");
    copy_as(format, *source, between);
    const auto read = open_source_as(posix_storage(), format, between);
    EXPECT_THAT(copy_as("torch", *read, back)->notes(), testing::IsEmpty()) << format;
    EXPECT_EQ(written_object(back).dump(), written_object(folder.path() / "in.pt").dump())
        << format;
  }
}

// A model may have modules of these names; the groups of an optimizer are a list.
TEST(TrainingFile, ModulesNamedLikeThePartsOfAnOptimizerAreWeights) {
  const test::TempDir folder;
  const Json object = {{"state", {{"w", tensor("a")}}}, {"param_groups", {{"w", tensor("b")}}}};
  save_torch(folder.path() / "in.pt", object, kTensors);
  const auto source = open_source(posix_storage(), folder.path() / "in.pt");
  for (const TensorInfo& each : source->catalog().tensors)
    EXPECT_EQ(each.state, state::kWeights) << each.label();
}

/// torch.save of {"a": a number, `key`: what `write` appends}, below `outer` unless that is empty.
void save_object(const Path& file, const std::string& outer, const std::string& key,
                 const std::function<void(torch::PickleWriter&)>& write) {
  torch::PickleWriter pickle;
  pickle.begin_dict();
  if (!outer.empty()) {
    pickle.str(outer);
    pickle.begin_dict();
  }
  pickle.str("a");
  pickle.tensor(DType::Float32, {2}, "0", 2);
  if (key == "optimizer" && !outer.empty()) pickle.end_dict();
  pickle.str(key);
  write(pickle);
  if (key != "optimizer" && !outer.empty()) pickle.end_dict();
  pickle.end_dict();
  torch::TorchOutput output(posix_storage(), file.parent_path());
  const std::size_t archive = output.add({file.filename(), "archive", pickle.finish(), {8}});
  const std::array<float, 2> values = {1, 2};
  output.write(archive, 0, 0, std::as_bytes(std::span(values)));
  output.finish();
}

TEST(TrainingFile, AParameterOfALazyModuleIsALostWeight) {
  for (const std::string outer : {"", "model"}) {
    const test::TempDir folder;
    save_object(folder.path() / "in.pt", outer, "b", [](torch::PickleWriter& pickle) {
      pickle.global("torch.nn.parameter", "UninitializedParameter");
      pickle.begin_tuple();
      pickle.boolean(true);
      pickle.end_tuple();
      pickle.reduce();
    });
    const auto source = open_source(posix_storage(), folder.path() / "in.pt");
    ASSERT_EQ(source->losses().size(), 1u);
    EXPECT_EQ(source->losses()[0].role, Role::Weight);
    EXPECT_EQ(source->losses()[0].name, outer.empty() ? "b" : "model.b");
    EXPECT_THAT(source->losses()[0].why, testing::HasSubstr("lazy module"));
    EXPECT_THAT(source->notes(), testing::IsEmpty());
  }
}

TEST(TrainingFile, AnOptimizerThatWasSavedAsAnObjectIsLostAsAWhole) {
  for (const std::string outer : {"", "model"}) {
    const test::TempDir folder;
    save_object(folder.path() / "in.pt", outer, "optimizer", [](torch::PickleWriter& pickle) {
      pickle.global("torch.optim.adamw", "AdamW");
      pickle.new_object();
      pickle.begin_dict();
      for (const char* field : {"defaults", "state", "param_groups"}) {
        pickle.str(field);
        pickle.begin_dict();
        pickle.end_dict();
      }
      pickle.end_dict();
      pickle.build();
    });
    const auto source = open_source(posix_storage(), folder.path() / "in.pt");
    ASSERT_EQ(source->losses().size(), 1u);
    EXPECT_EQ(source->losses()[0].role, Role::Optimizer);
    EXPECT_EQ(source->losses()[0].name, "optimizer (torch.optim.adamw.AdamW)");
    EXPECT_THAT(source->losses()[0].why, testing::HasSubstr("state_dict()"));
  }
}

/// Such an optimizer knows its parameters as objects, all of which have the same name here.
TEST(TrainingFile, StatesOfAnOptimizerThatIsAnObjectHaveNoLinesOfTheirOwn) {
  for (const std::string outer : {"", "model"}) {
    const test::TempDir folder;
    save_object(folder.path() / "in.pt", outer, "optimizer", [](torch::PickleWriter& pickle) {
      pickle.global("torch.optim.adamw", "AdamW");
      pickle.new_object();
      pickle.begin_dict();
      for (const char* field : {"defaults", "param_groups"}) {
        pickle.str(field);
        pickle.begin_dict();
        pickle.end_dict();
      }
      pickle.str("state");
      pickle.begin_dict();
      for (int parameter = 0; parameter < 2; ++parameter) {
        pickle.global("torch._utils", "_rebuild_parameter");
        pickle.begin_tuple();
        pickle.tensor(DType::Float32, {2}, "0", 2);
        pickle.boolean(true);
        pickle.begin_dict();
        pickle.end_dict();
        pickle.end_tuple();
        pickle.reduce();
        pickle.begin_dict();
        pickle.str("exp_avg");
        pickle.tensor(DType::Float32, {2}, "0", 2);
        pickle.end_dict();
      }
      pickle.end_dict();
      pickle.end_dict();
      pickle.build();
    });
    const auto source = open_source(posix_storage(), folder.path() / "in.pt");
    EXPECT_EQ(source->losses().size(), 1u);
    EXPECT_THAT(source->notes(), testing::IsEmpty());
    EXPECT_THAT(source->remarks(),
                testing::Not(testing::Contains(testing::HasSubstr("an object>"))));
  }
}

/// The averages of a model's weights are one thing that DeepSpeed's files have no place for.
TEST(TrainingFile, TensorsOfAValueThatDeepSpeedCannotHoldHaveOneLine) {
  const test::TempDir folder;
  const Json groups = Json::array({{{"lr", 0.1}, {"params", Json::array({0, 1})}}});
  const Json states = numbered({{{"exp_avg", tensor("a.m")}, {"exp_avg_sq", tensor("a.v")}},
                                {{"exp_avg", tensor("b.m")}, {"exp_avg_sq", tensor("b.m")}}});
  save_torch(folder.path() / "in.pt",
             {{"model", {{"a", tensor("a")}, {"b", tensor("b")}}},
              {"optimizer", {{"state", states}, {"param_groups", groups}}},
              {"ema", {{"a", tensor("a.v")}, {"b", tensor("b.m")}, {"updates", 7}}}},
             kTensors);
  const auto sink =
      copy_as("deepspeed", *open_in_order(folder.path() / "in.pt"), folder.path() / "out");
  const auto is_of_average = testing::HasSubstr("client_state.ema");
  EXPECT_THAT(sink->notes(), testing::Contains(is_of_average).Times(1));
  EXPECT_THAT(sink->notes(), testing::Contains(testing::HasSubstr("its 2 tensors, for which")));
}

/// A module may have a state of its own, which is no tensor.
TEST(TrainingFile, StateOfAModuleIsUnderItsOwnKeyInADcpFolder) {
  const test::TempDir folder;
  const Json model = {{"$type", "collections.OrderedDict"},
                      {"pairs", Json::array({Json::array({"0.w", tensor("a")}),
                                             Json::array({"0._extra_state", 5})})}};
  save_torch(folder.path() / "in.pt", {{"model", model}, {"epoch", 1}}, kTensors);
  const auto sink =
      copy_as("dcp", *open_source(posix_storage(), folder.path() / "in.pt"), folder.path() / "out");
  EXPECT_THAT(sink->notes(),
              testing::Not(testing::Contains(testing::HasSubstr("in unishard.catalog only"))));
  const std::string metadata = test::read_file(folder.path() / "out" / ".metadata");
  EXPECT_NE(metadata.find("model.0._extra_state"), metadata.npos);
}

TEST(TrainingFile, WithoutAnOptimizerIsNoTrainingOfAccelerate) {
  for (const Json& optimizer : {Json(), Json::object()}) {
    const test::TempDir folder;
    save_torch(folder.path() / "in.pt",
               {{"model", {{"a", tensor("a")}, {"b", tensor("b")}}}, {"optimizer", optimizer}},
               kTensors);
    const auto source = open_source(posix_storage(), folder.path() / "in.pt");
    EXPECT_THAT(test::error_of([&] { copy_as("accelerate", *source, folder.path() / "out"); }),
                test::Fails(ErrorCode::Unsupported, {"this checkpoint holds no optimizer"}));
  }
}

TEST(TrainingFile, ComesBackWithItsOwnKeysFromEveryFormat) {
  const test::TempDir folder;
  const Json groups = Json::array({{{"lr", 0.25}, {"params", Json::array({0, 1})}}});
  const Json optimizer = {{"state", numbered({{{"m", tensor("a.m")}}, {{"m", tensor("b.m")}}})},
                          {"param_groups", groups}};
  const Json object = {{"epoch", 3},
                       {"state_dict", {{"a", tensor("a")}, {"b", tensor("b")}}},
                       {"optimizer_states", Json::array({optimizer})},
                       {"ema", {{"a", tensor("a.v")}, {"updates", 7}}},
                       {"args", {{"arch", "vit"}, {"size", tuple({2, 3})}, {"none", nullptr}}},
                       {"history", Json::array({1.5, tensor("b.step")})}};
  save_torch(folder.path() / "in.pt", object, kTensors);
  const auto source = open_source(posix_storage(), folder.path() / "in.pt");
  for (const char* format : {"torch", "native", "dcp", "hdf5", "safetensors", "npz"}) {
    const Path between = folder.path() / format,
               back = folder.path() / (std::string(format) + ".pt");
    copy_as(format, *source, between, of_more_training(source->catalog()));
    const auto read = open_source_as(posix_storage(), format, between);
    EXPECT_THAT(copy_as("torch", *read, back)->notes(), testing::IsEmpty()) << format;
    const Json found = written_object(back);
    std::vector<std::string> keys;
    for (const auto& [key, value] : found.items()) keys.push_back(key);
    EXPECT_THAT(keys, testing::ElementsAre("epoch", "state_dict", "optimizer_states", "ema", "args",
                                           "history"))
        << format;
    for (const auto& [key, value] : object.items()) {
      if (key == "state_dict" || key == "optimizer_states") continue;
      EXPECT_EQ(found[key].dump(), written_object(folder.path() / "in.pt")[key].dump()) << format;
    }
    const Json& states = found["optimizer_states"][0];
    EXPECT_EQ(states["param_groups"][0]["params"], Json::array({0, 1})) << format;
    EXPECT_EQ(states["state"]["pairs"][1][0], 1) << format;
    EXPECT_EQ(states["state"]["pairs"].size(), 2u) << format;
    const auto again = open_source(posix_storage(), back);
    EXPECT_EQ(again->catalog().client_state, source->catalog().client_state) << format;
    EXPECT_EQ(floats(*again, "ema.a", "extra"), (std::vector<float>{11, 12})) << format;
    EXPECT_EQ(floats(*again, "b", "m"), (std::vector<float>{8, 9, 10})) << format;
  }
}

/// Writes the object, takes it through UniShard's format, and returns what a torch file then has.
/// `goes_on`: the training has gone on in between.
Json through_native(const test::TempDir& folder, const Json& object, bool goes_on = true,
                    const std::map<std::string, Made>& tensors = kTensors) {
  save_torch(folder.path() / "in.pt", object, tensors);
  const auto source = open_source(posix_storage(), folder.path() / "in.pt");
  copy_as("native", *source, folder.path() / "run",
          goes_on ? of_more_training(source->catalog()) : source->catalog());
  copy_as("torch", *open_source(posix_storage(), folder.path() / "run"), folder.path() / "out.pt");
  return written_object(folder.path() / "out.pt");
}

/// Expects that the object comes back from other formats with the same keys, classes and values.
void expect_back(const Json& object, const std::map<std::string, Made>& tensors = kTensors) {
  const test::TempDir folder;
  save_torch(folder.path() / "in.pt", object, tensors);
  const auto source = open_source(posix_storage(), folder.path() / "in.pt");
  for (const char* format : {"native", "dcp", "hdf5"}) {
    const Path between = folder.path() / format,
               back = folder.path() / (std::string(format) + ".pt");
    copy_as(format, *source, between);
    const auto sink = copy_as("torch", *open_source_as(posix_storage(), format, between), back);
    EXPECT_THAT(sink->notes(), testing::IsEmpty()) << format;
    EXPECT_EQ(written_object(back).dump(), written_object(folder.path() / "in.pt").dump())
        << format;
    const auto again = open_source(posix_storage(), back);
    ASSERT_EQ(labels(again->catalog()), labels(source->catalog())) << format;
    EXPECT_EQ(again->catalog().client_state, source->catalog().client_state) << format;
  }
}

// NAdam has a product of its momentums, which is a scalar, and torch's Adafactor factors second
// moments of matrices.
Json ordered(const Json& members) {
  Json pairs = Json::array();
  for (const auto& [key, value] : members.items()) pairs.push_back(Json::array({key, value}));
  return {{"$type", "collections.OrderedDict"}, {"pairs", std::move(pairs)}};
}
Json training_of(const char* model, const char* optimizer) {
  return {{model, {{"a", tensor("a")}}}, {optimizer, optimizer_of("a.m", true)}};
}

TEST(TrainingFile, ATensorUnderTwoKeysComesBackUnderBoth) {
  Json object = training_of("model", "optimizer");
  object["best"] = tensor("b");
  object["last"] = tensor("b");
  object["weights"] = tensor("a");
  object["callbacks"] = {
      {"ModelCheckpoint{'monitor': 'val.loss'}",
       {{"best_model_score", tensor("step")}, {"current_score", tensor("step")}}}};
  expect_back(object);
  const test::TempDir folder;
  const Json found = through_native(folder, object);
  for (const char* key : {"best", "last"}) EXPECT_EQ(found[key], tensor(key)) << key;
  EXPECT_EQ(found["callbacks"].front().size(), 2u) << found["callbacks"];
}

TEST(TrainingFile, MayHaveKeysWithDotsAndNumbers) {
  Json dotted = training_of("model", "optimizer");
  dotted["val.loss"] = 0.5;
  dotted["a.b"] = tensor("b");
  dotted["a"] = {{"b", tensor("b.m")}};
  expect_back(dotted);
  Json pairs = Json::array({Json::array({0, "zero"}), Json::array({"0", tensor("b")}),
                            Json::array({true, 1.5}), Json::array({tuple({1, 2}), nullptr})});
  const Json training = training_of("model", "optimizer");
  for (const auto& [key, value] : training.items()) pairs.push_back(Json::array({key, value}));
  expect_back({{"$type", "builtins.dict"}, {"pairs", pairs}});
  const test::TempDir folder;
  save_torch(folder.path() / "in.pt", dotted, kTensors);
  EXPECT_THAT(labels(open_source(posix_storage(), folder.path() / "in.pt")->catalog()),
              testing::UnorderedElementsAre("a fp32", "a exp_avg", "a exp_avg_sq", "a.b extra",
                                            "a.b#2 extra"));
}

// A flat state dict holds tensors, whatever its names are; what is no tensor stays beside them.
TEST(TrainingFile, AFlatStateDictWithOtherValuesIsNone) {
  const test::TempDir folder;
  const Json object = {{"layer.a", tensor("a")}, {"layer._extra_state", {{"scale", 2}}}, {"v", 3}};
  save_torch(folder.path() / "in.pt", object, kTensors);
  EXPECT_EQ(labels(open_source(posix_storage(), folder.path() / "in.pt")->catalog()),
            (std::vector<std::string>{"layer.a weights"}));
  expect_back(object);
}

TEST(TrainingFile, SeveralModelsAndOptimizersKeepTheirKeys) {
  std::map<std::string, Made> tensors = kTensors;
  tensors["other"] = {DType::Float32, {2}, {101, 102}};
  tensors["other.m"] = {DType::Float32, {2}, {103, 104}};
  const auto both = [](const char* one, const char* two, bool is_numbered) {
    return std::pair{optimizer_of(one, is_numbered), optimizer_of(two, is_numbered)};
  };
  for (const bool is_numbered : {false, true}) {
    const auto [one, two] = both("a.m", "other.m", is_numbered);
    const Json models = Json::array({ordered({{"a", tensor("a")}}), {{"a", tensor("other")}}});
    expect_back({{"netG", models[0]},
                 {"netD", models[1]},
                 {"optimizerG", one},
                 {"optimizerD", two},
                 {"epoch", 2}},
                tensors);
    expect_back({{"models", models}, {"optimizers", Json::array({one, two})}}, tensors);
    expect_back({{"models", tuple(models)}, {"optimizers", tuple({one, two})}}, tensors);
  }
}

// The values have changed, so that the object is made anew; the keys of several models cannot be.
TEST(TrainingFile, SaysWhenSeveralModelsLoseTheirKeys) {
  std::map<std::string, Made> tensors = kTensors;
  tensors["other"] = {DType::Float32, {2}, {101, 102}};
  tensors["other.m"] = {DType::Float32, {2}, {103, 104}};
  const test::TempDir folder;
  save_torch(folder.path() / "in.pt",
             {{"gen", {{"a", tensor("a")}}},
              {"disc", {{"a", tensor("other")}}},
              {"opt_gen", optimizer_of("a.m", true)},
              {"opt_disc", optimizer_of("other.m", true)}},
             tensors);
  const auto source = open_source(posix_storage(), folder.path() / "in.pt");
  const auto sink =
      copy_as("torch", *source, folder.path() / "out.pt", of_more_training(source->catalog()));
  EXPECT_THAT(sink->notes(), testing::ElementsAre(testing::HasSubstr("the arrangement")));
}

TEST(TrainingFile, AModelAloneKeepsItsOuterKey) {
  for (const char* key : {"state_dict", "model"}) {
    const Json object = {{key, ordered({{"a", tensor("a")}, {"b", tensor("b")}})}};
    expect_back(object);
    const test::TempDir folder;
    through_native(folder, object, false);
    const torch::TorchFile out(torch::whole_file(posix_storage(), folder.path() / "out.pt"));
    EXPECT_EQ(torch::to_json(out.root()).size(), 1u) << "nothing of UniShard's beside it";
  }
}

TEST(TrainingFile, KeepsTheClassesOfNestedDicts) {
  Json object = training_of("model", "optimizer");
  object["scheduler"] = ordered({{"last_epoch", 3}, {"ema", ordered({{"x", tensor("b")}})}});
  expect_back(object);
}

TEST(TrainingFile, KeepsWhatIsAParameterAndRequiresGradients) {
  Json object = training_of("model", "optimizer");
  object["log_alpha"] = {{"$tensor", "b"}, {"requires_grad", true}};
  object["frozen"] = {{"$tensor", "b.m"}, {"parameter", true}};
  object["values"] =
      Json::array({3, {{"$tensor", "b.step"}, {"parameter", true}, {"requires_grad", true}}});
  const test::TempDir folder;
  save_torch(folder.path() / "in.pt", object, kTensors);
  const Json written = written_object(folder.path() / "in.pt");
  EXPECT_EQ(written["log_alpha"]["requires_grad"], true);
  EXPECT_EQ(written["frozen"]["parameter"], true);
  EXPECT_FALSE(written["frozen"].contains("requires_grad"));
  EXPECT_EQ(written["values"][1]["parameter"], true);
  expect_back(object);
}

// Some programs give each parameter a group of its own, in the order of the model.
TEST(TrainingFile, GroupsOfOneParameterEachAreInTheOrderOfTheModel) {
  std::map<std::string, Made> tensors = kTensors;
  tensors["c"] = {DType::Float32, {2}, {101, 102}};
  tensors["c.m"] = {DType::Float32, {2}, {103, 104}};
  Json groups = Json::array();
  for (const int number : {0, 1, 2})
    groups.push_back({{"lr", 0.1}, {"params", Json::array({number})}});
  const Json states =
      numbered({{{"m", tensor("a.m")}}, {{"m", tensor("b.m")}}, {{"m", tensor("c.m")}}});
  const test::TempDir folder;
  save_torch(folder.path() / "in.pt",
             {{"model", {{"a", tensor("a")}, {"b", tensor("b")}, {"c", tensor("c")}}},
              {"optimizer", {{"state", states}, {"param_groups", groups}}}},
             tensors);
  const auto source = open_in_order(folder.path() / "in.pt");
  EXPECT_EQ(floats(*source, "c", "m"), (std::vector<float>{103, 104}));
  EXPECT_THAT(source->remarks(), testing::ElementsAre(testing::HasSubstr("order of the model")));
}

/// The user's word names the optimizer's parameters, and changes nothing else in a copy.
TEST(TrainingFile, WithTheUsersWordComesBackWithItsNamesAndKeys) {
  Json groups = Json::array({{{"lr", 0.1}, {"params", Json::array({0, 1})}}});
  Json object = {{"epoch", 3},
                 {"state_dict", {{"module.a", tensor("a")}, {"module.c", tensor("c")}}},
                 {"optim_state",
                  {{"state", numbered({{{"m", tensor("a.m")}}, {{"m", tensor("c.m")}}})},
                   {"param_groups", groups}}}};
  std::map<std::string, Made> tensors = kTensors;
  tensors["c"] = {DType::Float32, {2}, {101, 102}};
  tensors["c.m"] = {DType::Float32, {2}, {103, 104}};
  const test::TempDir folder;
  save_torch(folder.path() / "in.pt", object, tensors);
  const auto source = open_in_order(folder.path() / "in.pt");
  copy_as("torch", *source, folder.path() / "copy.pt", source->layout());
  copy_as("native", *source, folder.path() / "between");
  copy_as("torch", *open_source(posix_storage(), folder.path() / "between"),
          folder.path() / "back.pt");
  for (const char* name : {"copy.pt", "back.pt"}) {
    const auto copy = open_source(posix_storage(), folder.path() / name);
    EXPECT_EQ(floats(*copy, "c", "m"), (std::vector<float>{103, 104})) << name;
    const Json written = written_object(folder.path() / name);
    EXPECT_TRUE(written["state_dict"].contains("module.c")) << name;
    EXPECT_EQ(written["epoch"], 3) << name;
    EXPECT_EQ(written["optim_state"]["param_groups"][0]["params"], Json({0, 1})) << name;
  }
}

// bitsandbytes keeps moments in 8 bits, with tables beside them.
TEST(TrainingFile, EightBitMomentsAreNamedAndNoRunOfDeepSpeed) {
  std::map<std::string, Made> tensors = kTensors;
  tensors["a.8"] = {DType::UInt8, {2}, {}};
  tensors["b.8"] = {DType::UInt8, {3}, {}};
  tensors["table"] = {DType::Float32, {4}, {1, 2, 3, 4}};
  const Json states = numbered({{{"state1", tensor("a.8")}, {"qmap1", tensor("table")}},
                                {{"state1", tensor("b.8")}, {"qmap1", tensor("table")}}});
  const Json groups = Json::array({{{"lr", 0.1}, {"params", Json::array({0, 1})}}});
  const test::TempDir folder;
  save_torch(folder.path() / "in.pt",
             {{"model", {{"a", tensor("a")}, {"b", tensor("b")}}},
              {"optimizer", {{"state", states}, {"param_groups", groups}}}},
             tensors);
  const auto source = open_source(posix_storage(), folder.path() / "in.pt");
  EXPECT_THAT(labels(source->catalog()),
              testing::UnorderedElementsAre("a fp32", "a state1", "a qmap1", "b fp32", "b state1",
                                            "b qmap1"));
  try {
    copy_as("deepspeed", *source, folder.path() / "out");
    FAIL() << "uint8 states were written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("a [state1]: an optimizer state of type uint8"));
  }
}

// DeepSpeed's optimizers leave frozen parameters out; torch numbers them.
TEST(TrainingFile, AFrozenParameterStaysInItsGroupThroughDeepSpeed) {
  const Json group = {{"lr", 0.1}, {"params", Json::array({0, 1})}};
  const Json states = {
      {"$type", "builtins.dict"},
      {"pairs", Json::array({Json::array(
                    {1, {{"exp_avg", tensor("b.m")}, {"exp_avg_sq", tensor("b.m")}}})})}};
  const test::TempDir folder;
  save_torch(folder.path() / "in.pt",
             {{"model", {{"a", tensor("a")}, {"b", tensor("b")}}},
              {"optimizer", {{"state", states}, {"param_groups", Json::array({group})}}}},
             kTensors);
  const auto source = open_in_order(folder.path() / "in.pt");
  for (const char* format : {"deepspeed", "deepspeed-universal"}) {
    const Path between = folder.path() / format / "run",
               back = folder.path() / (std::string(format) + ".pt");
    copy_as(format, *source, between);
    const auto run = open_source_as(posix_storage(), format, between);
    EXPECT_EQ(run->catalog().groups[0]["params"], Json({"a", "b"})) << format;
    copy_as("torch", *run, back, of_more_training(run->catalog()));
    const Json optimizer = written_object(back)["optimizer"];
    EXPECT_EQ(optimizer["param_groups"][0]["params"], Json({0, 1})) << format;
    EXPECT_EQ(optimizer["state"]["pairs"].size(), 1u) << format;
    EXPECT_EQ(optimizer["state"]["pairs"][0][0], 1) << format;
  }
}

TEST(TrainingFile, ShapesOfAllStatesTellWhoseTheyAre) {
  const test::TempDir folder;
  std::map<std::string, Made> tensors = kTensors;
  tensors["w"] = {DType::Float32, {2, 3}, {1, 2, 3, 4, 5, 6}};
  tensors["row"] = {DType::Float32, {2, 1}, {1, 2}};
  tensors["column"] = {DType::Float32, {1, 3}, {1, 2, 3}};
  const Json groups = Json::array({{{"lr", 0.1}, {"params", Json::array({0, 1})}}});
  const Json states = numbered({{{"a_product", tensor("step")}, {"exp_avg", tensor("a.m")}},
                                {{"row_var", tensor("row")}, {"col_var", tensor("column")}}});
  save_torch(folder.path() / "in.pt",
             {{"model", {{"a", tensor("a")}, {"w", tensor("w")}}},
              {"optimizer", {{"state", states}, {"param_groups", groups}}}},
             tensors);
  EXPECT_EQ(labels(open_source(posix_storage(), folder.path() / "in.pt")->catalog()),
            (std::vector<std::string>{"a a_product", "a exp_avg", "a fp32", "w col_var", "w fp32",
                                      "w row_var"}));
}

TEST(TrainingFile, AnOptimizerWithListsOfTensorsComesBackWhole) {
  const test::TempDir folder;
  const Json states =
      numbered({{{"al", Json::array({nullptr, tensor("b")})},
                 {"old_dirs", Json::array({tensor("a.v"), tensor("b.m"), 3})},
                 {"stps", {{"$type", "tuple"}, {"items", Json::array({tensor("a.m")})}}},
                 {"n_iter", 4},
                 {"prev_flat_grad", tensor("a.m")}}});
  const Json object = {
      {"model", {{"a", tensor("a")}, {"b", tensor("b")}}},
      {"optimizer",
       {{"state", states},
        {"param_groups", Json::array({{{"history_size", 2}, {"params", Json::array({0, 1})}}})}}},
      {"epoch", 2}};
  const Json found = through_native(folder, object);
  EXPECT_EQ(found["optimizer"].dump(), written_object(folder.path() / "in.pt")["optimizer"].dump());
  EXPECT_EQ(found["epoch"], 2);
}

TEST(TrainingFile, TensorsOfAnObjectOfAClassStayUnderItsKey) {
  const test::TempDir folder;
  const Json adam = {{"exp_avg", tensor("a.m")}, {"exp_avg_sq", tensor("a.v")}};
  save_torch(folder.path() / "in.pt",
             {{"model", {{"a", tensor("a")}, {"b", tensor("b")}}},
              {"optimizer",
               {{"state", numbered({adam})},
                {"param_groups", Json::array({{{"lr", 0.5}, {"params", Json::array({0, 1})}}})}}},
              {"ema", {{"shadow", {{"b", tensor("b.m")}}}, {"decay", 0.5}}}},
             kTensors);
  const auto source = open_source(posix_storage(), folder.path() / "in.pt");
  Catalog catalog = of_more_training(source->catalog());
  // As of an object of a class, which a file of this test cannot hold.
  const Json fields = catalog.client_state["ema"];
  for (const Json& object :
       {Json{{"$type", "object"}, {"name", "user.Ema"}, {"args", Json::array()}, {"state", fields}},
        Json{{"$type", "torch.nn.Module"}, {"name", "user.Ema"}, {"members", fields["shadow"]}}}) {
    catalog.client_state["ema"] = object;
    const Path path = folder.path() / (object["$type"].get<std::string>() + ".pt");
    const auto sink = copy_as("torch", *source, path, catalog);
    EXPECT_THAT(sink->notes(), testing::ElementsAre(testing::HasSubstr("ema: as an object")));
    const Json written = written_object(path);
    const bool is_module = !object.contains("state");
    const Json found = is_module ? written["ema"]["pairs"][0] : written["ema"]["shadow"];
    EXPECT_EQ(torch::tensors_in(found).size(), 1u) << written["ema"].dump();
    ASSERT_EQ(written["optimizer"]["state"]["pairs"].size(), 1u);
    EXPECT_EQ(written["optimizer"]["state"]["pairs"][0][0], 0);
  }
  catalog.client_state.erase("ema");
  copy_as("torch", *source, folder.path() / "lost.pt", catalog);
  const Json written = written_object(folder.path() / "lost.pt");
  EXPECT_EQ(written["optimizer"]["state"]["pairs"].size(), 1u);
  EXPECT_EQ(labels(open_source(posix_storage(), folder.path() / "lost.pt")->catalog()),
            labels(source->catalog()));
}

TEST(TrainingFile, ThatListsNotAllNumbersKeepsThem) {
  const test::TempDir folder;
  const Json adam = {{"exp_avg", tensor("a.m")}, {"exp_avg_sq", tensor("a.v")}};
  save_torch(folder.path() / "in.pt",
             {{"model", {{"a", tensor("a")}, {"b", tensor("a.v")}, {"c", tensor("a.m")}}},
              {"optimizer",
               {{"state", numbered({adam, adam, adam})},
                {"param_groups", Json::array({{{"lr", 0.5}, {"params", Json::array({0, 2})}}})}}}},
             kTensors);
  const auto source = open_source(posix_storage(), folder.path() / "in.pt");
  copy_as("trainer", *source, folder.path() / "trainer");
  const auto back = open_source(posix_storage(), folder.path() / "trainer");
  EXPECT_EQ(back->catalog().groups[0]["params"], Json({"state.0", "state.2"}));
  EXPECT_THAT(labels(back->catalog()), testing::Contains("state.2 exp_avg"));
}

TEST(TorchFile, AFlatStateDictKeepsItsClassAndNames) {
  const test::TempDir folder;
  const Json dict = {{"_orig_mod.a", tensor("a")}, {"_orig_mod.b", tensor("b")}};
  const Json ordered = {{"$type", "collections.OrderedDict"},
                        {"pairs", Json::array({Json::array({"a", tensor("a")})})},
                        {"_metadata", {{"", {{"version", 1}}}}}};
  for (const Json& object : {dict, ordered}) {
    const bool is_ordered = object.contains("$type");
    const Path in = folder.path() / (is_ordered ? "o.pt" : "d.pt"),
               out = folder.path() / (is_ordered ? "o_out.pt" : "d_out.pt");
    save_torch(in, object, kTensors);
    const auto source = open_source(posix_storage(), in);
    copy_as("torch", *source, out, source->layout());
    EXPECT_EQ(written_object(out).dump(), written_object(in).dump());
  }
}

TEST(TrainingFile, TheParametersOfAnOptimizerWithJointStatesAreNotFrozen) {
  const Json group = {{"params", Json::array({0, 1})}, {"param_names", Json::array({"a", "b"})}};
  for (const char* shape_of : {"a.m", "vector"}) {
    const test::TempDir folder;
    std::map<std::string, Made> tensors = kTensors;
    tensors["vector"] = {DType::Float32, {7}, {1, 2, 3, 4, 5, 6, 7}};
    save_torch(folder.path() / "in.pt",
               {{"model", {{"a", tensor("a")}, {"b", tensor("b")}}},
                {"optimizer",
                 {{"state", numbered({{{"prev_flat_grad", tensor(shape_of)}}})},
                  {"param_groups", Json::array({group})}}}},
               tensors);
    const auto source = open_source(posix_storage(), folder.path() / "in.pt");
    for (const TensorInfo& each : source->catalog().tensors)
      EXPECT_FALSE(each.frozen) << each.label() << " " << shape_of;
  }
}

TEST(TrainingFile, HasWhatTorchHasInModelsGroupsAndStates) {
  const test::TempDir folder;
  const Json group = {{"lr", 0.1},
                      {"betas", tuple({0.5, 0.75})},
                      {"eps", tuple({nullptr, 0.25})},
                      {"params", Json::array({0, 1})}};
  const Json states =
      numbered({{{"momentum_buffer", tensor("a.m")}}, {{"momentum_buffer", tensor("b.m")}}});
  const Json found = through_native(
      folder, {{"model", {{"_orig_mod.a", tensor("a")}, {"_orig_mod.b", tensor("b")}}},
               {"optimizer", {{"state", states}, {"param_groups", Json::array({group})}}}});
  EXPECT_EQ(found["model"]["$type"], "collections.OrderedDict");
  EXPECT_EQ(found["model"]["pairs"][0][0], "_orig_mod.a") << "the names of a compiled model";
  const Json& optimizer = found["optimizer"];
  EXPECT_EQ(optimizer["param_groups"][0]["betas"], tuple({0.5, 0.75}));
  EXPECT_EQ(optimizer["param_groups"][0]["eps"], tuple({nullptr, 0.25}));
  EXPECT_FALSE(optimizer["state"]["pairs"][0][1].contains("step")) << "SGD counts no steps";
}

TEST(TrainingFile, WithAnEmptyTensorBesideTheModelBecomesADeepSpeedRun) {
  const test::TempDir folder;
  std::map<std::string, Made> tensors = kTensors;
  tensors["none"] = {DType::Float32, {0, 3}, {}};
  const Json optimizer = {
      {"state", numbered({{{"exp_avg", tensor("a.m")}, {"exp_avg_sq", tensor("a.v")}}})},
      {"param_groups", Json::array({{{"lr", 0.25}, {"params", Json::array({0})}}})}};
  save_torch(folder.path() / "in.pt",
             {{"model", {{"a", tensor("a")}}}, {"optimizer", optimizer}, {"x", tensor("none")}},
             tensors);
  const auto source = open_source(posix_storage(), folder.path() / "in.pt");
  const auto sink = copy_as("deepspeed", *source, folder.path() / "out");
  ASSERT_EQ(sink->left_out().size(), 1u);
  EXPECT_EQ(source->catalog().tensors[sink->left_out()[0]].fqn, "x");
}

/// Changes a file of UniShard's as a script does that loads it, trains on and saves the same dict.
Json trained_on(const Path& file) {
  const torch::TorchFile opened(torch::whole_file(posix_storage(), file));
  Json object = torch::to_json(opened.root());
  object["epoch"] = 9;
  object["best"] = 0.5;
  object["ema"] = {{"a", tensor("ema")}};
  object["optimizer"]["param_groups"][0]["lr"] = 0.25;
  return object;
}

TEST(TrainingFile, ThatAScriptHasSavedAgainIsReadAsItIsNow) {
  const test::TempDir folder;
  const Path again = folder.path() / "again.pt", ours = folder.path() / "ours.pt";
  const Json of_a = {{"exp_avg", tensor("a.m")}, {"step", tensor("step")}};
  const auto first =
      open_training(folder, of_a, {{"exp_avg", tensor("b.m")}, {"step", tensor("step")}});
  copy_as("native", *first, folder.path() / "native", of_more_training(first->catalog()));
  copy_as("torch", *open_source(posix_storage(), folder.path() / "native"), ours);
  EXPECT_THAT(open_source(posix_storage(), ours)->remarks(), testing::IsEmpty());

  std::map<std::string, Made> tensors = kTensors;
  tensors["late"] = {DType::Float32, {}, {9}};
  tensors["ema"] = {DType::Float32, {2}, {1, 1}};
  Json object = trained_on(ours);
  object["model"] = {{"a", tensor("a")}, {"b", tensor("b")}, {"c", tensor("a.v")}};
  Json& states = object["optimizer"]["state"]["pairs"];
  states[0][1] = {{"exp_avg", tensor("a.m")}, {"step", tensor("late")}};
  states[1][1] = {{"exp_avg", tensor("b.m")}, {"step", tensor("late")}};
  save_torch(again, object, tensors);
  const auto source = open_source(posix_storage(), again);
  EXPECT_EQ(source->catalog().step, 9);
  EXPECT_EQ(source->catalog().groups[0]["lr"], 0.25);
  EXPECT_EQ(source->catalog().client_state["best"], 0.5);
  EXPECT_THAT(source->remarks(),
              testing::ElementsAre(testing::HasSubstr(
                  "now: param_groups.0.lr, the optimizer's steps, epoch, best")));
  std::vector<std::pair<Role, std::string>> lost;
  for (const Loss& loss : source->losses()) lost.emplace_back(loss.role, loss.name);
  EXPECT_THAT(lost, testing::UnorderedElementsAre(std::pair(Role::Weight, "model.c"),
                                                  std::pair(Role::ClientValue, "ema.a")));

  states[1][1]["step"] = tensor("step");
  const Path other = folder.path() / "other.pt";
  save_torch(other, object, tensors);
  const auto uneven = open_source(posix_storage(), other);
  EXPECT_EQ(uneven->catalog().step, 5);
  EXPECT_THAT(uneven->remarks(), testing::Contains(testing::HasSubstr("differ from each other")));
}

TEST(TorchViews, OfOneStorageThatDifferInSignOrConjugationAreTwoTensors) {
  const auto source = open_source(posix_storage(), kFiles / "views_of_one_storage.pt");
  const auto& aliases = source->catalog().aliases;
  ASSERT_EQ(aliases.size(), 1u);
  EXPECT_EQ(aliases[0].fqn, "same");
  EXPECT_EQ(floats(*source, "real", "weights"), (std::vector<float>{1, -2, 3}));
  EXPECT_EQ(floats(*source, "negative", "weights"), (std::vector<float>{-1, 2, -3}));
  EXPECT_EQ(floats(*source, "complex", "weights"), (std::vector<float>{1, 2, 3, -4}));
  EXPECT_EQ(floats(*source, "conjugate", "weights"), (std::vector<float>{1, -2, 3, 4}));
  EXPECT_THAT(notes_of(*source), testing::Contains(testing::HasSubstr("elements in common")));
}

/// The parts of a flat buffer, of rows and of columns, are no parts of each other.
TEST(TorchViews, OfPartsOfOneStorageAreNamedOnceWhereTheyShareElements) {
  const auto view = [](std::uint64_t offset, Shape shape, std::vector<std::uint64_t> strides,
                       DType dtype = DType::Float32) {
    return torch::ViewIdentity{"0", offset, std::move(shape), std::move(strides), dtype};
  };
  using Views = std::vector<torch::ViewIdentity>;
  const auto note_of = [](const Views& views) {
    torch::ViewNames names;
    for (std::size_t i = 0; i < views.size(); ++i)
      names.emplace(std::pair("file", views[i]), fmt::format("v{}", i));
    return torch::note_shared_parts(names);
  };
  for (const Views& apart :
       {Views{view(0, {4}, {1}), view(4, {2, 3}, {3, 1})},
        Views{view(0, {4, 2}, {4, 1}), view(2, {4, 2}, {4, 1})},  // columns
        Views{view(0, {4}, {2}), view(1, {4}, {2})},              // every other element
        Views{view(0, {}, {}), view(1, {8}, {0})},                // expanded
        Views{view(0, {4}, {1}), view(2, {0, 3}, {3, 1})},        // empty
        Views{view(0, {4}, {1}, DType::BFloat16), view(2, {3}, {1})}, Views{view(0, {4}, {1})}})
    EXPECT_EQ(note_of(apart), std::nullopt);
  for (const Views& shared :
       {Views{view(0, {20}, {1}), view(3, {6}, {1})}, Views{view(0, {20}, {1}), view(0, {10}, {2})},
        Views{view(0, {4, 5}, {5, 1}), view(0, {5, 4}, {1, 5})},  // transposed
        Views{view(0, {4}, {1}), view(0, {8}, {1}, DType::BFloat16)},
        Views{view(0, {9}, {1}), view(1, {1}, {1}), view(8, {4}, {1})}}) {
    const auto note = note_of(shared);
    ASSERT_TRUE(note);
    EXPECT_THAT(*note, testing::StartsWith(fmt::format("{} tensors", shared.size())));
    EXPECT_THAT(*note, testing::HasSubstr("\"v0\" and \"v1\" first"));
  }
  torch::ViewNames files;
  files.emplace(std::pair("a", view(0, {4}, {1})), "x");
  files.emplace(std::pair("b", view(0, {3}, {1})), "y");
  EXPECT_EQ(torch::note_shared_parts(files), std::nullopt) << "each has its own storages";
}

}  // namespace
}  // namespace unishard::converters
