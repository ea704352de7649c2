// What we write for DeepSpeed: the layout of the files, and the way back through our own reader.
// Whether DeepSpeed itself takes it: tests/interop/peers/deepspeed_accepts.py.
#include "unishard/converters/cut_patterns.hpp"
#include "unishard/converters/registry.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "containers/object_tree.hpp"
#include "containers/pickle_json.hpp"
#include "containers/torch_file.hpp"
#include "deepspeed_case.hpp"
#include "expect.hpp"
#include "fixtures.hpp"
#include "formats/deepspeed/cpu_states.hpp"
#include "formats/deepspeed/writer_layout.hpp"
#include "temp_dir.hpp"
#include "whole_copy.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>

namespace unishard::converters {
namespace {

using test::TempDir;

/// A catalog with bytes: fp32 values that count up, 16-bit weights rounded from them.
class MemorySource final : public Source {
 public:
  explicit MemorySource(Catalog catalog) : catalog_(std::move(catalog)) {
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) bytes_.push_back(make(i));
  }
  std::string format() const override { return "memory"; }
  const Catalog& catalog() const override { return catalog_; }
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    const std::uint64_t width = size_of(catalog_.tensors[tensor].dtype);
    std::ranges::copy(std::span(bytes_[tensor]).subspan(range.begin * width, out.size()),
                      out.begin());
  }

 private:
  std::vector<std::byte> make(std::size_t index) const {
    const TensorInfo& tensor = catalog_.tensors[index];
    std::vector<std::byte> bytes(tensor.bytes());
    const auto master = catalog_.find(tensor.fqn, state::kFp32).value_or(index);
    for (std::uint64_t i = 0; i < tensor.elements(); ++i) {
      const float value = 1.001f * static_cast<float>(1000 * (master + 1) + i);
      if (tensor.dtype == DType::BFloat16) {
        const std::uint16_t rounded = round_to_bfloat16(value);
        std::memcpy(&bytes[i * 2], &rounded, 2);
      } else if (tensor.dtype == DType::Float32) {
        const float stored =
            tensor.state == state::kFp32 ? value : value + static_cast<float>(index);
        std::memcpy(&bytes[i * 4], &stored, 4);
      } else {
        for (std::uint64_t b = 0; b < size_of(tensor.dtype); ++b) {
          bytes[i * size_of(tensor.dtype) + b] = static_cast<std::byte>(b == 0 ? i & 1 : 0);
        }
      }
    }
    return bytes;
  }

  const Catalog catalog_;
  std::vector<std::vector<std::byte>> bytes_;
};

TensorInfo tensor(std::string fqn, std::string_view state, Shape shape,
                  DType dtype = DType::Float32, bool frozen = false) {
  return {std::move(fqn), std::string(state), dtype, std::move(shape), -1, frozen, false, {}, {}};
}

void add_parameter(Catalog& catalog, const std::string& fqn, const Shape& shape) {
  for (const char* state : {"fp32", "exp_avg", "exp_avg_sq"}) {
    catalog.tensors.push_back(tensor(fqn, state, shape));
  }
}

/// 50 and 7 elements in one group.
Catalog small_model(std::uint32_t world_size, std::uint32_t stage) {
  Catalog catalog;
  add_parameter(catalog, "a", {5, 10});
  add_parameter(catalog, "b", {7});
  catalog.step = 3;
  catalog.world_size = world_size;
  catalog.stage = stage;
  return catalog;
}

std::unique_ptr<Sink> make(const Path& folder, const Catalog& catalog, bool universal) {
  if (universal) return make_deepspeed_universal_sink(posix_storage(), folder, "tag", catalog);
  return make_deepspeed_sink(posix_storage(), folder, "tag", catalog);
}

std::vector<std::string> write(const Path& folder, const Source& source, const Catalog& catalog,
                               bool universal = false) {
  auto sink = make(folder, catalog, universal);
  copy(whole_copy(source, catalog), *sink, {.threads = 2, .buffer_bytes = 256});
  auto notes = sink->notes();
  sink->commit();
  return notes;
}

std::vector<std::string> write(const Path& folder, const Catalog& catalog, bool universal = false) {
  return write(folder, MemorySource(catalog), catalog, universal);
}

torch::TorchFile open_archive(const Path& path) {
  return torch::TorchFile(torch::whole_file(posix_storage(), path));
}

torch::TorchFile optimizer_file(const TempDir& dir, std::uint32_t rank) {
  return open_archive(dir.path() / "tag" /
                      fmt::format("zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank));
}

torch::TorchFile model_file(const TempDir& dir, const char* name = "mp_rank_00_model_states.pt") {
  return open_archive(dir.path() / "tag" / name);
}

std::vector<float> floats(const torch::TorchFile& file, torch::Value value) {
  const auto bytes = file.tensor(value).read_all(1u << 20);
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

/// Every tensor of `source` is in the checkpoint at `path`, bit for bit.
std::string first_difference(const Source& source, const Path& path) {
  const auto written = open_source(posix_storage(), path);
  for (std::size_t i = 0; i < source.catalog().tensors.size(); ++i) {
    const TensorInfo& info = source.catalog().tensors[i];
    const auto found = written->catalog().find(info.fqn, info.state);
    if (!found) return info.label() + " is missing";
    const TensorInfo& back = written->catalog().tensors[*found];
    if (back.dtype != info.dtype || back.shape != info.shape) return info.label() + " changed";
    std::vector<std::byte> expected(info.bytes()), got(info.bytes());
    source.read(i, {0, info.elements()}, expected);
    written->read(*found, {0, info.elements()}, got);
    if (expected != got) return info.label() + " has other bytes";
  }
  return {};
}

TEST(DeepSpeedSink, Stage2CutsAGroupIntoPiecesOfEvenLength) {
  TempDir dir;
  write(dir.path(), small_model(3, 2));
  EXPECT_EQ(read_text(posix_storage(), dir.path() / "latest", 100), "tag");
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto file = optimizer_file(dir, rank);
    const torch::Value inner = file.root().at("optimizer_state_dict");
    EXPECT_EQ(inner.at("zero_stage").integer(), 2);
    const torch::Value state = inner.at("base_optimizer_state").at("state").value(0);
    EXPECT_EQ(state.at("step").integer(), 3);
    EXPECT_EQ(file.tensor(state.at("exp_avg")).shape, (Shape{20}));  // 57 rounded up to 60
    const Shape visible = file.tensor(inner.at("single_partition_of_fp32_groups")[0]).shape;
    EXPECT_EQ(visible, (Shape{rank == 2 ? 17u : 20u}));
    EXPECT_EQ(inner.at("group_paddings")[0].integer(), rank == 2 ? 3 : 0);
    EXPECT_EQ(inner.at("partition_count")[0].integer(), 3);
  }
  const auto last = optimizer_file(dir, 2);
  const auto moments = floats(last, last.root()
                                        .at("optimizer_state_dict")
                                        .at("base_optimizer_state")
                                        .at("state")
                                        .value(0)
                                        .at("exp_avg"));
  EXPECT_NE(moments[16], 0.0f);
  EXPECT_EQ(std::vector<float>(moments.begin() + 17, moments.end()), std::vector<float>(3, 0.0f));
}

/// DeepSpeed looks up each frozen parameter of its model in a dict, and in None none.
TEST(DeepSpeedSink, ARunSavedWithoutItsFrozenParametersHasNoDictOfThem) {
  for (const std::uint32_t stage : {2u, 3u}) {
    const char* const name =
        stage == 3 ? "zero_pp_rank_0_mp_rank_00_model_states.pt" : "mp_rank_00_model_states.pt";
    Catalog catalog = small_model(2, stage);
    TempDir without;
    write(without.path(), catalog);
    catalog.tensors.push_back(tensor("frozen", "weights", {4}, DType::Float32, true));
    TempDir with;
    write(with.path(), catalog);
    for (const char* key : {"frozen_param_shapes", "frozen_param_fragments"}) {
      EXPECT_TRUE(model_file(without, name).root().at(key).is_none()) << key << " " << stage;
      EXPECT_EQ(model_file(with, name).root().at(key).pair_count(), 1u) << key << " " << stage;
    }
  }
}

/// PEFT with a tied embedding: DeepSpeed saves the second name alone, and looks for no other.
TEST(DeepSpeedSink, ASecondNameOfWhatIsNotSavedStaysTheSecond) {
  Catalog catalog = small_model(2, 2);
  catalog.tensors.push_back(tensor("head", "weights", {4}, DType::Float32, true));
  catalog.aliases.push_back({"embedding", "head"});
  catalog.producer = {{"library", "deepspeed"}, {"saves_no_frozen", true}};
  TempDir first;
  write(first.path(), catalog);
  const auto source = converters::open_source(posix_storage(), first.path());
  EXPECT_EQ(source->catalog().producer.value("saves_no_frozen", Json()), true);
  TempDir second;
  write(second.path(), source->catalog());
  for (const TempDir* dir : {&first, &second}) {
    const auto file = model_file(*dir, "mp_rank_00_model_states.pt");
    EXPECT_TRUE(file.root().at("frozen_param_shapes").is_none());
    EXPECT_TRUE(file.root().at("module").find("head"));
    EXPECT_FALSE(file.root().at("module").find("embedding"));
    EXPECT_EQ(file.root().at("shared_params").at("head").string(), "embedding");
  }
}

TEST(DeepSpeedSink, Stage2LetsRanksOwnPaddingOnly) {
  TempDir dir;
  Catalog catalog;
  add_parameter(catalog, "tiny", {1});
  catalog.world_size = 4;
  catalog.stage = 2;
  write(dir.path(), catalog);
  const auto file = optimizer_file(dir, 3);
  const torch::Value inner = file.root().at("optimizer_state_dict");
  EXPECT_EQ(file.tensor(inner.at("single_partition_of_fp32_groups")[0]).shape, (Shape{0}));
  EXPECT_EQ(inner.at("group_paddings")[0].integer(), 2);
  EXPECT_EQ(inner.at("param_slice_mappings")[0].pair_count(), 0u);
}

TEST(DeepSpeedSink, Stage3CutsEveryParameterAndWritesPlaceholders) {
  TempDir dir;
  write(dir.path(), small_model(3, 3));
  const auto file = optimizer_file(dir, 2);
  const torch::Value inner = file.root().at("optimizer_state_dict");
  EXPECT_EQ(inner.at("partition_count").integer(), 3);
  const auto master = floats(file, inner.at("fp32_flat_groups")[0]);
  ASSERT_EQ(master.size(), 17u + 3u);
  EXPECT_NE(master[15], 0.0f);  // 50 = 17 + 17 + 16
  EXPECT_EQ(master[16], 0.0f);
  EXPECT_NE(master[17], 0.0f);  // 7 = 3 + 3 + 1
  EXPECT_EQ(master[18], 0.0f);
  const auto model = model_file(dir, "zero_pp_rank_2_mp_rank_00_model_states.pt");
  EXPECT_EQ(model.tensor(model.root().at("module").at("a")).shape, (Shape{0}));
}

TEST(DeepSpeedSink, Stage0KeepsStatesInTheModelFile) {
  TempDir dir;
  const MemorySource source(small_model(2, 0));
  write(dir.path(), source, source.catalog());
  EXPECT_EQ(first_difference(source, dir.path()), "");
  const auto file = model_file(dir);
  const torch::Value optimizer = file.root().at("optimizer");
  EXPECT_EQ(file.tensor(optimizer.at("state").value(0).at("exp_avg")).shape, (Shape{5, 10}));
  EXPECT_EQ(optimizer.at("param_groups")[0].at("params").size(), 2u);
  EXPECT_EQ(file.root().at("unishard").at("parameters")[0][1].text(), "b");
}

TEST(DeepSpeedSink, Stage0KeepsStatesOfOtherShapes) {
  const TempDir dir;
  Catalog catalog;
  for (const char* fqn : {"a", "b"}) {
    catalog.tensors.push_back(tensor(fqn, "fp32", {4, 6}));
    catalog.tensors.push_back(tensor(fqn, "exp_avg_sq_row", {4}));
    catalog.tensors.push_back(tensor(fqn, "exp_avg_sq_col", {6}));
  }
  catalog.step = 3;
  const MemorySource source(catalog);
  EXPECT_THAT(write(dir.path(), source, catalog), testing::IsEmpty());
  EXPECT_EQ(first_difference(source, dir.path()), "");
}

// DeepSpeed's Adagrad of the CPU calls the sum exp_avg_sq; at stage 0, DeepSpeed uses torch's.
TEST(DeepSpeedSink, NamesTheSumOfAdagradAsDeepSpeedDoes) {
  Catalog catalog;
  catalog.world_size = 2;
  for (const char* fqn : {"a", "b"})
    for (const char* state : {"fp32", "sum"}) catalog.tensors.push_back(tensor(fqn, state, {3, 2}));
  for (TensorInfo& each : catalog.tensors) each.group = 0;
  catalog.groups = parse_json(R"([{"lr": 0.5, "eps": 1e-10, "params": ["a", "b"]}])", "test");
  for (const bool is_torchs : {false, true}) {
    const char* const setting = is_torchs ? "initial_accumulator_value" : "amsgrad";
    catalog.groups[0].erase("amsgrad");
    catalog.groups[0][setting] = 0;
    for (const std::uint32_t stage : {0u, 1u, 3u}) {
      SCOPED_TRACE(stage);
      const TempDir dir;
      catalog.stage = stage;
      const MemorySource source(catalog);
      write(dir.path(), source, catalog);
      EXPECT_EQ(first_difference(source, dir.path()), "");
      if (stage == 0) continue;
      const auto file = optimizer_file(dir, 0);
      const char* base = stage == 3 ? "optimizer_state_dict" : "base_optimizer_state";
      const torch::Value state = file.root().at("optimizer_state_dict").at(base).at("state");
      EXPECT_TRUE(state.value(0).find(is_torchs ? "sum" : "exp_avg_sq"));
    }
  }
}

// Megatron-Core stores a float32 run's weights beside its masters.
TEST(DeepSpeedSink, WeightsOfTheMastersTypeAreTheMasters) {
  Catalog catalog;
  for (const char* state : {"fp32", "exp_avg", "exp_avg_sq", "weights"})
    catalog.tensors.push_back(tensor("a", state, {3, 2}));
  const MemorySource source(catalog);
  for (const std::uint32_t stage : {0u, 1u, 3u}) {
    const TempDir dir;
    catalog.stage = stage;
    EXPECT_THAT(
        write(dir.path(), source, catalog),
        testing::Contains(testing::HasSubstr("DeepSpeed has the masters of such weights only")));
    EXPECT_FALSE(open_source(posix_storage(), dir.path())->catalog().find("a", "weights"));
  }
}

// Adafactor has exp_avg_sq alone in vectors, and Adam where a file lost its first moment.
TEST(DeepSpeedSource, TakesNoOtherOptimizerForAdagrad) {
  const auto name_beside = [](const char* other, const char* settings) {
    deepspeed::ParameterTable table;
    table.add("a", {2}, 0);
    table.add("b", {2}, 0);
    table.all()[0].states.push_back({"exp_avg_sq", {}, {}});
    table.all()[1].states.push_back({other, {}, {}});
    deepspeed::Notes notes;
    deepspeed::name_cpu_states(table, parse_json(settings, "test"), notes);
    return table.all()[0].states[0].state;
  };
  const char* const adagrad = R"([{"lr": 0.5, "eps": 1e-10, "weight_decay": 0, "amsgrad": false}])";
  EXPECT_EQ(name_beside("exp_avg_sq", adagrad), "sum");
  EXPECT_EQ(name_beside("exp_avg_sq", R"([{"optimizer": "Adagrad", "betas": [0, 0]}])"), "sum");
  EXPECT_EQ(name_beside("exp_avg", adagrad), "exp_avg_sq");
  EXPECT_EQ(name_beside("exp_avg_sq", R"([{"lr": 0.5, "eps": [1e-30, 0.001]}])"), "exp_avg_sq");
  EXPECT_EQ(name_beside("exp_avg_sq", R"([{"eps": 1e-8, "betas": [0, 0], "amsgrad": false}])"),
            "exp_avg_sq");
  EXPECT_EQ(name_beside("exp_avg_sq", "[]"), "exp_avg_sq");
}

// DeepSpeed's Lion of the CPU makes a second moment and never uses it. Adam-atan2 has no eps
// either, and uses it.
TEST(DeepSpeedSource, LeavesOutTheMomentThatLionDoesNotUse) {
  const auto states_with = [](const char* settings, char element) {
    auto storage = std::make_shared<torch::StorageBytes>();
    storage->inflated = std::make_shared<const std::string>(8, element);
    torch::TensorView view;
    view.shape = {2};
    view.strides = {1};
    view.storage = std::move(storage);
    deepspeed::ParameterTable table;
    table.add("a", {2}, 0);
    for (const char* state : {"fp32", "exp_avg"}) table.all()[0].states.push_back({state, {}, {}});
    table.add_piece(0, "exp_avg_sq", {{0, 2}, std::move(view), 0});
    deepspeed::Notes notes;
    deepspeed::name_cpu_states(table, parse_json(settings, "test"), notes);
    EXPECT_EQ(notes.losses().empty(), table.all()[0].states.size() == 3);
    return table.all()[0].states.size();
  };
  const char* const lion = R"([{"lr": 0.5, "betas": [0.9, 0.99], "weight_decay": 0}])";
  EXPECT_EQ(states_with(lion, 0), 2u);
  EXPECT_EQ(states_with(lion, 1), 3u);
  EXPECT_EQ(states_with(R"([{"lr": 0.5, "betas": [0.9, 0.99], "eps": 1e-8}])", 0), 3u);
  EXPECT_EQ(states_with("[]", 0), 3u);
}

// NAdam's mu_product: torch keeps one for each parameter, DeepSpeed one for each flat group.
TEST(DeepSpeedSink, KeepsStatesThatAreOneNumber) {
  Catalog catalog = small_model(2, 0);
  for (TensorInfo& each : catalog.tensors) each.group = each.fqn == "a" ? 0 : 1;
  for (const char* fqn : {"a", "b"}) {
    catalog.tensors.push_back(tensor(fqn, "mu_product", {}));
    catalog.tensors.back().group = fqn[0] == 'a' ? 0 : 1;
  }
  catalog.groups = parse_json(R"([{"lr": 0.5}, {"lr": 0.25}])", "test");
  for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
    SCOPED_TRACE(stage);
    const TempDir dir;
    catalog.stage = stage;
    const MemorySource source(catalog);
    EXPECT_THAT(write(dir.path(), source, catalog), testing::IsEmpty());
    EXPECT_EQ(first_difference(source, dir.path()), "");
    if (stage == 0) continue;
    const auto file = optimizer_file(dir, 1);
    const char* base = stage == 3 ? "optimizer_state_dict" : "base_optimizer_state";
    const torch::Value state = file.root().at("optimizer_state_dict").at(base).at("state");
    EXPECT_EQ(file.tensor(state.value(1).at("mu_product")).shape, Shape()) << "on every rank";
  }
  const TempDir dir;
  catalog.stage = 1;
  EXPECT_THAT(write(dir.path(), catalog, true),
              testing::Contains(testing::HasSubstr("universal checkpoints hold no numbers")));
}

TEST(DeepSpeedSink, RefusesNumbersThatDifferInAFlatGroup) {
  Catalog catalog = small_model(1, 0);
  for (const char* fqn : {"a", "b"}) catalog.tensors.push_back(tensor(fqn, "eta", {}));
  const TempDir whole, flat;
  const MemorySource source(catalog);  // gives each tensor another number
  EXPECT_THAT(write(whole.path(), source, catalog), testing::IsEmpty());
  EXPECT_EQ(first_difference(source, whole.path()), "");
  catalog.stage = 1;
  EXPECT_THAT(test::error_of([&] { write(flat.path(), source, catalog); }),
              test::Fails(ErrorCode::Unsupported, {"a [eta]", "b [eta]"}, "--stage 0"));
}

/// `a` in 16 bits, and `b` in a wider type.
Catalog mixed_model(DType wide, std::uint32_t stage) {
  Catalog catalog;
  catalog.tensors = {tensor("a", "weights", {5, 10}, DType::BFloat16),
                     tensor("a", "exp_avg", {5, 10}),
                     tensor("a", "exp_avg_sq", {5, 10}),
                     tensor("b", "fp32", {7}, wide),
                     tensor("b", "exp_avg", {7}),
                     tensor("b", "exp_avg_sq", {7})};
  catalog.step = 3;
  catalog.world_size = 2;
  catalog.stage = stage;
  return catalog;
}

TEST(DeepSpeedSink, WideWeightsBeside16BitOnesComeBackAsTheyWere) {
  for (const DType wide : {DType::Float32, DType::Float64}) {
    for (const std::uint32_t stage : {0u, 1u, 2u, 3u, 4u}) {  // 4: universal
      if (stage == 3 && wide == DType::Float64) continue;
      SCOPED_TRACE(fmt::format("{} {}", name_of(wide), stage));
      const Catalog catalog = mixed_model(wide, stage % 4);
      const MemorySource source(catalog);
      const TempDir dir;
      auto sink = make(dir.path(), catalog, stage == 4);
      EXPECT_THAT(sink->remarks(),
                  testing::ElementsAre(testing::AllOf(testing::HasSubstr("1 of them, \"b\" first"),
                                                      testing::HasSubstr("bfloat16"))));
      copy(whole_copy(source, catalog), *sink, {});
      sink->commit();
      const auto read = open_source(posix_storage(), dir.path());
      EXPECT_FALSE(read->catalog().find("b", state::kWeights)) << "it is no rounded copy";
      const auto weights = read->catalog().find("a", state::kWeights);
      ASSERT_TRUE(weights);
      std::vector<std::byte> expected(100), got(100);
      source.read(0, {0, 50}, expected);
      read->read(*weights, {0, 50}, got);
      EXPECT_EQ(expected, got);
    }
  }
}

TEST(DeepSpeedSink, Stage3RefusesFloat64Beside16BitWeightsInAGroup) {
  const TempDir dir;
  EXPECT_THAT(test::error_of([&] { make(dir.path(), mixed_model(DType::Float64, 3), false); }),
              test::Fails(ErrorCode::Unsupported, {"a [weights] is bfloat16"}, "--stage 2"));
}

TEST(DeepSpeedSink, KeepsTypesOfTorchInSettings) {
  const Json dtype = {{"$type", "torch.dtype"}, {"value", "torch.bfloat16"}};
  const Json size = {{"$type", "torch.Size"}, {"items", {2, 3}}};
  for (const std::uint32_t stage : {0u, 2u, 3u, 4u}) {
    Catalog catalog = small_model(1, stage % 4);
    catalog.groups = Json::array({{{"lr", 0.5}, {"state_dtype", dtype}, {"block", size}}});
    const TempDir dir;
    write(dir.path(), catalog, stage == 4);
    const Json group = open_source(posix_storage(), dir.path())->catalog().groups[0];
    EXPECT_EQ(group["state_dtype"], dtype);
    EXPECT_EQ(group["block"], size);
  }
}

TEST(DeepSpeedSink, AComplexParameterStaysInItsGroup) {
  Catalog catalog;
  catalog.tensors = {tensor("a", "fp32", {5, 10}), tensor("c", "weights", {3}, DType::Complex64)};
  for (TensorInfo& each : catalog.tensors) each.group = 0;
  catalog.groups = parse_json(R"([{"lr": 0.5, "momentum": 0.0, "params": ["a", "c"]}])", "test");
  const TempDir dir;
  EXPECT_THAT(write(dir.path(), catalog), testing::Contains(testing::HasSubstr("c: ")));
  EXPECT_EQ(open_source(posix_storage(), dir.path())->catalog().groups[0]["params"],
            Json({"a", "c"}));
}

TEST(DeepSpeedSink, Stage0WrapsA16BitOptimizerAsDeepSpeedDoes) {
  for (const bool fused : {false, true}) {
    TempDir dir;
    Catalog catalog = small_model(2, 0);
    catalog.tensors.push_back(tensor("a", "weights", {5, 10}, DType::BFloat16));
    catalog.tensors.push_back(tensor("b", "weights", {7}, DType::BFloat16));
    if (fused) catalog.groups = parse_json(R"([{"bias_correction": true}])", "test");
    const MemorySource source(catalog);
    write(dir.path(), source, catalog);
    EXPECT_EQ(first_difference(source, dir.path()), "");
    const auto file = model_file(dir);
    const torch::Value optimizer = file.root().at("optimizer");
    const torch::Value masters = optimizer.at(fused ? "fp32_groups_flat" : "fp32_groups")[0];
    EXPECT_EQ(file.tensor(fused ? masters : masters[1]).shape, (Shape{fused ? 57u : 7u}));
    EXPECT_EQ(optimizer.find("cur_scale").has_value(), !fused);
  }
}

TEST(DeepSpeedSink, NamesWhatStage0DoesNotKeepOfALossScaler) {
  Catalog catalog = small_model(1, 0);
  catalog.tensors.push_back(tensor("a", "weights", {5, 10}, DType::Float16));
  catalog.tensors.push_back(tensor("b", "weights", {7}, DType::Float16));
  catalog.loss_scaler = {
      {"dynamic", true}, {"cur_scale", 8}, {"cur_hysteresis", 1}, {"min_scale", 4}};
  for (const std::uint32_t stage : {0u, 2u}) {
    TempDir dir;
    catalog.stage = stage;
    const std::vector<std::string> notes = write(dir.path(), catalog);
    const bool has_note = std::ranges::any_of(notes, [](const std::string& note) {
      return note.find("loss scaler: cur_hysteresis, min_scale:") != note.npos;
    });
    EXPECT_EQ(has_note, stage == 0) << stage;
  }
}

TEST(DeepSpeedSink, Stage3FollowsTheSubGroupSize) {
  TempDir dir;
  Catalog catalog = small_model(2, 3);
  catalog.config = parse_json(R"({"zero_optimization": {"sub_group_size": 20}})", "test");
  write(dir.path(), catalog);
  const auto file = optimizer_file(dir, 0);
  const torch::Value inner = file.root().at("optimizer_state_dict");
  EXPECT_EQ(inner.at("fp32_flat_groups").size(), 2u);
  const torch::Value group = inner.at("optimizer_state_dict").at("param_groups")[0];
  EXPECT_EQ(group.at("params").size(), 2u);
  EXPECT_EQ(group.at("betas").kind(), torch::NodeKind::Tuple);
  EXPECT_TRUE(group.at("decoupled_weight_decay").boolean());
}

TEST(DeepSpeedSink, RoundRobinOrderIsThatOfTheNewWorldSize) {
  TempDir dir;
  Catalog catalog;
  for (const char* name : {"a", "b", "c", "d", "e"}) add_parameter(catalog, name, {2});
  catalog.world_size = 2;
  catalog.stage = 2;
  catalog.config = parse_json(R"({"zero_optimization": {"round_robin_gradients": true}})", "test");
  write(dir.path(), catalog);
  const auto model = model_file(dir);
  const torch::Value shapes = model.root().at("param_shapes")[0];
  std::string order;
  for (std::size_t i = 0; i < shapes.pair_count(); ++i) order += shapes.key(i).text();
  EXPECT_EQ(order, "acebd");
}

TEST(DeepSpeedSink, AlignedParametersHaveGaps) {
  TempDir dir;
  Catalog catalog = small_model(1, 2);
  catalog.config = parse_json(R"({"zero_optimization": {"parameter_alignment": true}})", "test");
  write(dir.path(), catalog);
  const auto file = optimizer_file(dir, 0);
  const torch::Value inner = file.root().at("optimizer_state_dict");
  const auto master = floats(file, inner.at("single_partition_of_fp32_groups")[0]);
  ASSERT_EQ(master.size(), 59u);  // 50 rounded up to a multiple of 16 bytes, then 7
  EXPECT_EQ(master[50], 0.0f);
  EXPECT_NE(master[52], 0.0f);
  EXPECT_EQ(inner.at("param_alignment_paddings")[0][0].integer(), 2);
}

/// Matrices of Muon, whose shapes are not sorted, and vectors of Adam.
Catalog muon_model(std::uint32_t world_size, std::uint32_t stage) {
  Catalog catalog;
  for (const auto& [fqn, shape] : std::vector<std::pair<std::string, Shape>>{
           {"a", {4, 6}}, {"b", {6, 8}}, {"c", {6, 3}}, {"d", {4, 6}}}) {
    for (const char* state : {"fp32", "momentum_buffer"}) {
      catalog.tensors.push_back(tensor(fqn, state, shape));
      catalog.tensors.back().group = 0;
    }
  }
  add_parameter(catalog, "bias", {7});
  for (TensorInfo& each : catalog.tensors) each.group = each.fqn == "bias" ? 1 : 0;
  catalog.groups = parse_json(R"([{"name": "muon", "use_muon": true, "lr": 0.02, "momentum": 0.9},
      {"name": "decay", "use_muon": false, "lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-10}])",
                              "test");
  catalog.step = 3;
  catalog.world_size = world_size;
  catalog.stage = stage;
  return catalog;
}

TEST(DeepSpeedSink, MuonsStatesComeBackFromEveryWorldSizeAndStage) {
  for (std::uint32_t stage = 0; stage <= 3; ++stage) {
    for (const std::uint32_t world_size : {1u, 2u, 3u, 5u, 40u}) {
      for (const char* config :
           {"{}", R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})"}) {
        const TempDir dir;
        Catalog catalog = muon_model(world_size, stage);
        catalog.config = parse_json(config, "test");
        const MemorySource source(catalog);
        EXPECT_THAT(write(dir.path(), source, catalog), testing::IsEmpty());
        EXPECT_EQ(first_difference(source, dir.path()), "")
            << "stage " << stage << ", world size " << world_size << ", " << config;
      }
    }
  }
}

/// DeepSpeed sorts the matrices, and each rank keeps all of those of which it has a part.
TEST(DeepSpeedSink, MuonsMomentumHasWholeMatricesAtStage2) {
  const TempDir dir;
  write(dir.path(), muon_model(2, 2));
  const auto model = model_file(dir);
  const torch::Value shapes = model.root().at("param_shapes")[0];
  std::string order;
  for (std::size_t i = 0; i < shapes.pair_count(); ++i) order += shapes.key(i).text();
  EXPECT_EQ(order, "bcad");  // 48, 18, 24 and 24 elements, which are cut after 58
  for (const std::uint32_t rank : {0u, 1u}) {
    const auto file = optimizer_file(dir, rank);
    const torch::Value optimizer =
        file.root().at("optimizer_state_dict").at("base_optimizer_state");
    const torch::Value state = optimizer.at("state").value(0);
    EXPECT_EQ(file.tensor(state.at("momentum_buffer")).shape, (Shape{66}));  // b and c; c, a and d
    EXPECT_FALSE(state.find("step").has_value());
    EXPECT_EQ(optimizer.at("state").value(1).at("step").integer(), 3);
    EXPECT_EQ(optimizer.at("param_groups")[0].at("ns_method").text(), "gram");
    EXPECT_TRUE(optimizer.at("param_groups")[1].at("bias_correction").boolean());
  }
}

TEST(DeepSpeedSink, ClientStateCannotOverwriteDeepSpeedsKeys) {
  TempDir dir;
  Catalog catalog = small_model(1, 1);
  catalog.client_state = parse_json(R"({"module": 1, "epoch": 2})", "test");
  catalog.data_position = parse_json(R"({"global_sample_index": 36, "epoch": 2})", "test");
  catalog.rng = parse_json(R"({"seed": 7})", "test");
  catalog.scheduler =
      parse_json(R"({"type": "WarmupLR", "last_batch_iteration": 2, "params": {}})", "test");
  const auto notes = write(dir.path(), catalog);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("client_state.module"), std::string::npos);
  const auto model = model_file(dir);
  EXPECT_TRUE(model.root().at("module").is_dict());
  EXPECT_EQ(model.root().at("epoch").integer(), 2);
  EXPECT_EQ(model.root().at("global_samples").integer(), 36);
  EXPECT_EQ(model.root().at("lr_scheduler").pair_count(), 1u);
  EXPECT_EQ(model.root().at("unishard").at("scheduler").at("type").text(), "WarmupLR");
  EXPECT_EQ(model.root().at("unishard").at("rng").at("seed").integer(), 7);
}

TEST(DeepSpeedSink, ItsOwnCheckpointsAreWrittenAgainWithoutANote) {
  for (const bool universal : {false, true}) {
    for (const char* client : {"null", R"({"universal_checkpoint_info": {"version": 0.2}})"}) {
      const TempDir first, second;
      Catalog catalog = small_model(2, 1);
      catalog.client_state = parse_json(client, "test");
      EXPECT_THAT(write(first.path(), catalog, universal), testing::IsEmpty());
      const auto source = open_source(posix_storage(), first.path());
      EXPECT_EQ(source->catalog().client_state, catalog.client_state);
      EXPECT_THAT(write(second.path(), *source, source->catalog()), testing::IsEmpty());
      EXPECT_TRUE(model_file(second).root().at("universal_checkpoint_info").is_dict());
    }
  }
}

TEST(DeepSpeedSink, NamesStatesThatAreNumbers) {
  TempDir dir;
  Catalog catalog = small_model(1, 1);
  catalog.client_state =
      parse_json(R"({"optimizer_scalars": {"mu_product": {"a": 0.5, "b": 0.5}}})", "test");
  EXPECT_THAT(write(dir.path(), catalog),
              testing::ElementsAre(testing::HasSubstr("mu_product\" of 2 parameters")));
}

TEST(DeepSpeedSink, KeepsWhatTheClientStateHasUnderNames) {
  TempDir dir;
  Catalog catalog = small_model(1, 1);
  catalog.client_state = parse_json(
      R"({"$type": "builtins.dict", "pairs": [["epoch", 2], [7, "seven"], ["best", 0.5]]})",
      "test");
  const auto notes = write(dir.path(), catalog);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0], "client_state: the value under 7, which is no name");
  const auto model = model_file(dir);
  EXPECT_EQ(model.root().at("epoch").integer(), 2);
  EXPECT_EQ(model.root().at("best").real(), 0.5);
}

TEST(DeepSpeedSink, LeavesOutWithANoteWhatStage3CannotHold) {
  TempDir dir;
  Catalog catalog = small_model(1, 3);
  catalog.tensors.push_back(tensor("a", "weights", {5, 10}, DType::BFloat16));
  const auto notes = write(dir.path(), catalog);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("a [weights]"), std::string::npos);
}

TEST(DeepSpeedSink, RefusesAParameterInNoGroup) {
  Catalog catalog = small_model(1, 2);
  catalog.groups = parse_json(R"([{"params": ["a"]}])", "test");
  TempDir dir;
  EXPECT_THAT(test::error_of([&] { make(dir.path(), catalog, false); }),
              test::Fails(ErrorCode::Mismatch, testing::StrEq("b is in no parameter group")));
}

TEST(DeepSpeedSink, DroppedSinkLeavesNothing) {
  TempDir dir;
  make(dir.path(), small_model(2, 2), false).reset();
  EXPECT_TRUE(posix_storage().list(dir.path()).empty());
}

TEST(DeepSpeedSink, RefusesAnExistingTag) {
  TempDir dir;
  write(dir.path(), small_model(1, 0));
  EXPECT_THROW(make(dir.path(), small_model(1, 0), false), Error);
}

/// A catalog with a parameter for each rule of the patterns.
Catalog tensor_parallel_model(std::uint32_t world_size, std::uint32_t stage) {
  Catalog catalog;
  catalog.step = 3;
  catalog.world_size = world_size;
  catalog.stage = stage;
  for (const auto& [fqn, shape] : std::vector<std::pair<std::string, Shape>>{{"columns", {6, 8}},
                                                                             {"deep", {3, 4, 5}},
                                                                             {"halves", {8, 3}},
                                                                             {"heads", {8, 3}},
                                                                             {"table", {7, 3}},
                                                                             {"norm", {5}},
                                                                             {"plain", {4, 3}}})
    add_parameter(catalog, fqn, shape);
  catalog.client_state["universal_checkpoint_info"] = {
      {"universal_checkpoint_version", 0.4},
      {"original_vocab_size", 7},
      {"vocabulary_parameter_patterns", {"table"}},
      {"tp_replicated_parameter_patterns", {"norm"}},
      {"parameter_with_row_parallelism_patterns", {"columns", "deep"}},
      {"parameter_with_2_sub_params_cat_dim_0", {"halves"}},
      {"parameter_with_sub_params",
       {{{"patterns", {"heads"}}, {"shape", {{4, 2, 2}, -1}}, {"partition_dim", 0}}}}};
  return catalog;
}

TEST(DeepSpeedSink, CutsTensorsForTensorParallelRanks) {
  for (const std::uint32_t stage : {0u, 1u, 2u, 3u}) {
    SCOPED_TRACE(stage);
    TempDir dir;
    const Catalog catalog = tensor_parallel_model(6, stage);
    const MemorySource source(catalog);
    const Output output{.format = "deepspeed",
                        .path = dir.path(),
                        .tag = "tag",
                        .parallel = {.tensor = 2, .vocabulary_multiple = 3}};
    auto sink = make_sink(posix_storage(), output, catalog);
    copy(whole_copy(source, catalog), *sink, {.threads = 2, .buffer_bytes = 16});
    EXPECT_TRUE(sink->notes().empty());
    sink->commit();
    EXPECT_EQ(first_difference(source, dir.path()), "");
  }
}

/// ds_to_universal asks for as many widths as there are ranks.
TEST(DeepSpeedSink, AWholeRunHasTheWidthsOfOneRank) {
  Catalog catalog = small_model(1, 1);
  const Json sub = {{"patterns", {"^a$"}}, {"shape", {{3, 2}, -1}}, {"partition_dim", 0}};
  catalog.client_state = {{kCutPatterns,
                           {{"universal_checkpoint_version", 0.4},
                            {"parameter_with_sub_params", Json::array({sub})},
                            {"sub_param_shard_widths", {{"^a$", {{2, 1}, {1, 1}}}}}}}};
  const TempDir dir;
  write(dir.path(), catalog);
  const auto source = open_source(posix_storage(), dir.path());
  EXPECT_EQ(source->catalog().client_state[kCutPatterns]["sub_param_shard_widths"],
            (Json{{"^a$", {{3}, {2}}}}));
}

TEST(DeepSpeedSink, RefusesTensorsThatRanksCannotShare) {
  TempDir dir;
  const auto refused = [&](const std::string& key, const Json& value, const std::string& words) {
    Catalog catalog = tensor_parallel_model(2, 1);
    catalog.client_state["universal_checkpoint_info"][key] = value;
    const Output output{
        .format = "deepspeed", .path = dir.path(), .tag = "tag", .parallel = {.tensor = 2}};
    EXPECT_THAT(test::error_of([&] { make_sink(posix_storage(), output, std::move(catalog)); }),
                test::Fails(ErrorCode::Unsupported, words));
  };
  const auto heads = [](const Json& shape, int dimension) {
    return Json::array({{{"patterns", {"heads"}}, {"shape", shape}, {"partition_dim", dimension}}});
  };
  refused("tp_replicated_parameter_patterns", Json::array(), "norm [fp32]: dimension 0 has 5");
  refused("parameter_with_row_parallelism_patterns", {"plain"}, "3 elements");
  refused("parameter_with_sub_params", heads({{5, 3}, -1}, 0), "5 elements in a part");
  refused("parameter_with_sub_params", heads({{4, 2}, -1}, 0), "and its sub-parameters 6");
  refused("parameter_with_sub_params", heads({3, -1}, 0), "8 rows are not 3 sub-parameters");
  refused("parameter_with_sub_params", heads({-1, 3}, 1), "another dimension than the first");
  refused("parameter_with_sub_params", heads(Json::array({2}), 0), "1 dimensions, and it has 2");
  refused("original_vocab_size", 6, "it has 7 rows, and original_vocab_size is 6");
}

TEST(DeepSpeedSink, SaysWhyAPipelineOf16BitsIsNotWrittenAtStage0) {
  const auto refused = [](DType dtype, const std::string& words) {
    Catalog catalog;
    for (const char* fqn : {"0.w", "1.w"}) {
      add_parameter(catalog, fqn, {2, 2});
      catalog.tensors.push_back(tensor(fqn, "weights", {2, 2}, dtype));
    }
    catalog.world_size = 2;
    const TempDir dir;
    const Output output{
        .format = "deepspeed", .path = dir.path(), .tag = "tag", .parallel = {.stages = 2}};
    EXPECT_THAT(test::error_of([&] { make_sink(posix_storage(), output, catalog); }),
                test::Fails(ErrorCode::Unsupported, {"16-bit weights at stage 0", words}));
  };
  refused(DType::BFloat16, "DeepSpeed does not load");
  refused(DType::Float16, "in float16, its fp32 masters have no names");
}

TEST(DeepSpeedSink, RefusesNumbersOfParametersForTensorParallelRanks) {
  TempDir dir;
  Catalog catalog = tensor_parallel_model(2, 1);
  for (const TensorInfo& tensor : std::vector(catalog.tensors)) {
    if (tensor.state != state::kExpAvg) continue;
    catalog.tensors.push_back(tensor);
    catalog.tensors.back().state = "mu_product";
    catalog.tensors.back().shape = {};
  }
  const Output output{
      .format = "deepspeed", .path = dir.path(), .tag = "tag", .parallel = {.tensor = 2}};
  EXPECT_THAT(test::error_of([&] { make_sink(posix_storage(), output, std::move(catalog)); }),
              test::Fails(ErrorCode::Unsupported, "[mu_product]: a state that is one number"));
}

TEST(DeepSpeedUniversalSink, WritesAFolderAParameter) {
  TempDir dir;
  write(dir.path(), small_model(1, 2), true);
  EXPECT_EQ(read_text(posix_storage(), dir.path() / "latest_universal", 100), "tag");
  const auto payload = open_archive(dir.path() / "tag/zero/a/exp_avg.pt");
  EXPECT_EQ(payload.tensor(payload.root().at("param")).shape, (Shape{5, 10}));
  const auto step = open_archive(dir.path() / "tag/zero/b/step.pt");
  EXPECT_EQ(floats(step, step.root()), std::vector<float>{3.0f});
}

TEST(DeepSpeedUniversalSink, NotesThatTheLoaderWantsMomentsAtStage3) {
  TempDir with, without;
  EXPECT_TRUE(write(with.path(), small_model(1, 3), true).empty());
  Catalog momentum = small_model(1, 3);
  std::erase_if(momentum.tensors, [](const TensorInfo& t) { return t.state == "exp_avg_sq"; });
  const auto notes = write(without.path(), momentum, true);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("asks for exp_avg and exp_avg_sq"), std::string::npos);
}

/// A training whose optimizer has a second moment and a state `first` in the place of the other.
Catalog with_states(std::string_view first, const Shape& second) {
  Catalog catalog;
  catalog.tensors = {tensor("a", "fp32", {5, 10}), tensor("a", first, {5, 10}),
                     tensor("a", "exp_avg_sq", second)};
  catalog.groups =
      parse_json(R"([{"lr": 0.5, "betas": [0.9, 0.99], "eps": 1e-8, "amsgrad": false}])", "test");
  return catalog;
}

TEST(DeepSpeedUniversalSink, WritesAScheduleFreeOptimizer) {
  const MemorySource source(with_states("z", {5, 10}));
  const TempDir dir;
  write(dir.path(), source, source.catalog(), true);
  EXPECT_EQ(first_difference(source, dir.path()), "");
}

TEST(DeepSpeedUniversalSink, RefusesAMomentThatIsOneNumber) {
  const TempDir dir;
  EXPECT_THAT(test::error_of([&] { make(dir.path(), with_states("exp_avg", {}), true); }),
              test::Fails(ErrorCode::Unsupported, {"exp_avg_sq", "one number"}));
}

TEST(DeepSpeedUniversalSink, RefusesNamesThatAreNoFileNames) {
  for (const std::string& name : {std::string("a/b"), std::string(".."), std::string(256, 'x')}) {
    Catalog catalog;
    add_parameter(catalog, name, {2});
    TempDir dir;
    EXPECT_THROW(make(dir.path(), catalog, true), Error) << name;
  }
}

TEST(DeepSpeedSink, WritesFixturesForEveryWorldSizeAndStage) {
  SKIP_WITHOUT_FIXTURES();
  for (const char* name : {"stage2_two_groups_frozen_tied", "stage3_bf16_two_groups_frozen",
                           "stage2_fp16_dynamic", "stage0_bf16_fused"}) {
    const test::CaseSource source(test::fixtures() / "deepspeed" / name);
    for (const std::uint32_t stage : {1u, 2u, 3u}) {
      for (const std::uint32_t world_size : {1u, 2u, 5u}) {
        TempDir dir;
        Catalog catalog = source.catalog();
        catalog.world_size = world_size;
        catalog.stage = stage;
        write(dir.path(), source, catalog);
        EXPECT_EQ(first_difference(source, dir.path()), "")
            << name << ", stage " << stage << ", " << world_size << " ranks";
      }
    }
  }
}

TEST(DeepSpeedUniversalSink, EverythingComesBack) {
  SKIP_WITHOUT_FIXTURES();
  for (const char* name : {"stage2_two_groups_frozen_tied", "stage2_bf16"}) {
    const test::CaseSource source(test::fixtures() / "deepspeed" / name);
    TempDir dir;
    write(dir.path(), source, source.catalog(), true);
    EXPECT_EQ(first_difference(source, dir.path()), "") << name;
  }
}

Shape random_shape() {
  const auto dimensions = *rc::gen::inRange<std::size_t>(0, 4);
  Shape shape;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const bool is_empty = *rc::gen::inRange(0, 30) == 0;
    shape.push_back(is_empty ? 0 : *rc::gen::inRange<std::uint64_t>(1, 9));
  }
  return shape;
}

Catalog random_model() {
  Catalog catalog;
  catalog.world_size = *rc::gen::inRange<std::uint32_t>(1, 7);
  catalog.stage = *rc::gen::inRange<std::uint32_t>(1, 4);
  catalog.step = *rc::gen::inRange(0, 100000);
  const auto groups = *rc::gen::inRange<std::size_t>(1, 4);
  const auto count = *rc::gen::inRange<std::size_t>(1, 9);
  const bool is_bf16 = *rc::gen::arbitrary<bool>();
  catalog.groups = Json::array();
  for (std::size_t g = 0; g < groups; ++g)
    catalog.groups.push_back({{"lr", 0.1}, {"params", Json::array()}});
  for (std::size_t i = 0; i < count; ++i) {
    const std::string fqn = fmt::format("layer.{}.weight", i);
    const Shape shape = random_shape();
    const int kind = i == 0 ? 0 : *rc::gen::inRange(0, 6);
    if (kind == 4) {
      catalog.tensors.push_back(tensor(fqn, "weights", shape, DType::Float32, true));
    } else if (kind == 5) {
      catalog.tensors.push_back(tensor(fqn, "buffer", shape, DType::Int64));
    } else {
      add_parameter(catalog, fqn, shape);
      if (is_bf16) catalog.tensors.push_back(tensor(fqn, "weights", shape, DType::BFloat16));
      catalog.groups[*rc::gen::inRange<std::size_t>(0, groups)]["params"].push_back(fqn);
    }
    if (kind != 5 && *rc::gen::inRange(0, 4) == 0) catalog.aliases.push_back({fqn + ".again", fqn});
  }
  catalog.config["zero_optimization"] = {{"round_robin_gradients", *rc::gen::arbitrary<bool>()},
                                         {"parameter_alignment", *rc::gen::arbitrary<bool>()},
                                         {"sub_group_size", *rc::gen::inRange(1, 200)}};
  return catalog;
}

RC_GTEST_PROP(DeepSpeedSinkProperty, EverythingComesBack, ()) {
  const Catalog catalog = random_model();
  const MemorySource source(catalog);
  TempDir dir;
  write(dir.path(), source, catalog);
  RC_ASSERT(first_difference(source, dir.path()) == "");
  const auto back = open_source(posix_storage(), dir.path());
  RC_ASSERT(back->catalog().aliases.size() == catalog.aliases.size());
  RC_ASSERT(back->catalog().world_size == catalog.world_size);
  RC_ASSERT(back->catalog().step == catalog.step);
}

TEST(PickleJson, ComesBackAsItWas) {
  const Json value = parse_json(R"({
    "none": null, "yes": true, "int": -5, "big": 18446744073709551615, "real": 0.1, "text": "é",
    "list": [1, [2]], "empty": [{}, []],
    "tuple": {"$type": "tuple", "items": [1, {"$type": "tuple", "items": []}]},
    "set": {"$type": "set", "items": [1, 2]},
    "bytes": {"$type": "bytes", "hex": "00ff80"}, "no bytes": {"$type": "bytes", "hex": ""},
    "bytearray": {"$type": "bytearray", "hex": "7f80"},
    "huge": {"$type": "int", "dec": "-123456789012345678901234567890"},
    "inf": {"$type": "float", "value": "-inf"}, "nan": {"$type": "float", "value": "nan"},
    "complex": {"$type": "complex", "value": [1.0, -2.5]},
    "size": {"$type": "torch.Size", "items": [2, 3]},
    "dtype": {"$type": "torch.dtype", "value": "torch.bfloat16"},
    "device": {"$type": "torch.device", "value": "cuda:1"},
    "keys": {"$type": "builtins.dict", "pairs": [[1, "a"], ["$x", "b"]]},
    "ordered": {"$type": "collections.OrderedDict", "pairs": [["w", 1]],
                "_metadata": {"version": 2}}})",
                                "test");
  const auto pickle = torch::pickle_of(value, "test");
  Json expected = value;
  expected["big"] = {{"$type", "int"}, {"dec", "18446744073709551615"}};
  EXPECT_EQ(torch::to_json(pickle->root()).dump(1), expected.dump(1));
}

TEST(PickleJson, LeavesOutWhatIsNoData) {
  const Json value = parse_json(R"({"good": 1, "args": {"$type": "object", "name": "my.Arguments"},
    "deep": {"keep": 2, "call": {"$type": "global", "name": "os.system"}, "t": {"$tensor": "x"}}})",
                                "test");
  std::vector<std::string> dropped;
  const Json kept = torch::without_unwritable(value, "client_state", dropped);
  EXPECT_EQ(kept.dump(), R"({"good":1,"deep":{"keep":2}})");
  ASSERT_EQ(dropped.size(), 3u);
  EXPECT_NE(dropped[0].find("client_state.args: "), std::string::npos);
  EXPECT_NE(dropped[0].find("my.Arguments"), std::string::npos);
}

TEST(PickleJson, LeavesOutOfAContainerOnlyWhatIsNoData) {
  const Json value = parse_json(R"({
    "list": [1, {"$type": "object", "name": "my.A"}, 3],
    "tuple": {"$type": "tuple", "items": [{"a": {"$type": "object", "name": "my.A"}, "b": 2}]},
    "space": {"$type": "object", "name": "argparse.Namespace",
              "state": {"a": {"$type": "object", "name": "my.A"}, "b": 2}},
    "none": [{"$type": "object", "name": "my.A"}]})",
                                "test");
  std::vector<std::string> dropped;
  const Json kept = torch::without_unwritable(value, "client_state", dropped);
  EXPECT_EQ(kept, parse_json(R"({"list": [1, null, 3],
    "tuple": {"$type": "tuple", "items": [{"b": 2}]},
    "space": {"$type": "object", "name": "argparse.Namespace", "state": {"b": 2}}})",
                             "test"));
  EXPECT_THAT(dropped,
              testing::ElementsAre(testing::AllOf(testing::StartsWith("client_state.list.1: "),
                                                  testing::EndsWith("None is in its place")),
                                   testing::StartsWith("client_state.tuple.0.a: "),
                                   testing::StartsWith("client_state.space.a: "),
                                   testing::StartsWith("client_state.none: ")));
}

TEST(PickleJson, KeepsPlainObjectsOnly) {
  const auto reason = [](const char* text) {
    std::vector<std::string> dropped;
    torch::with_all_tensors(parse_json(text, "test"), {}, dropped);
    return dropped.empty() ? std::string() : dropped.front();
  };
  EXPECT_EQ(reason(R"({"$type": "object", "name": "argparse.Namespace", "state": {"a": 1}})"), "");
  EXPECT_EQ(reason(R"({"$type": "frozenset", "items": [1]})"), "");
  EXPECT_EQ(reason(R"({"$type": "object", "name": "numpy.dtype", "args": ["f8"]})"), "");
  // What such an object is made of must be data as well.
  EXPECT_NE(reason(R"({"$type": "object", "name": "argparse.Namespace",
      "state": {"a": {"$type": "object", "name": "os.system", "args": ["true"]}}})"),
            "");
  EXPECT_NE(reason(R"({"$type": "object", "name": "numpy.core.multiarray._reconstruct",
      "args": [{"$type": "global", "name": "os.system"}]})"),
            "");
  EXPECT_NE(reason(R"({"$type": "object", "name": "builtins.eval", "args": ["1"]})"), "");
}

}  // namespace
}  // namespace unishard::converters
