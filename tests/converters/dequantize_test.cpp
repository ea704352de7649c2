// Which weights are dequantized, to which values, and which are refused. The values are computed by
// hand; tests/interop/peers/quantized.py compares with the libraries that write such weights.
#include "unishard/converters/dequantize.hpp"

#include "unishard/converters/dtype_cast.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "read_source.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

namespace unishard::converters {
namespace {

using test::error_of;
using test::Fails;
using testing::ElementsAre;

std::string bytes_of(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text += static_cast<char>(value);
  return text;
}

std::string floats_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

/// A model in memory. A tensor may have more elements than bytes: reading them fails the test.
class Model final : public Source {
 public:
  Model& add(const std::string& fqn, DType dtype, Shape shape, std::string bytes = {}) {
    TensorInfo tensor;
    tensor.fqn = fqn;
    tensor.state = state::kWeights;
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    catalog_.tensors.push_back(std::move(tensor));
    bytes_.push_back(std::move(bytes));
    return *this;
  }
  Model& add_floats(const std::string& fqn, Shape shape, const std::vector<float>& values) {
    return add(fqn, DType::Float32, std::move(shape), floats_of(values));
  }
  TensorInfo& last() { return catalog_.tensors.back(); }
  Catalog& edit() { return catalog_; }

  std::string format() const override { return "test"; }
  const Catalog& catalog() const override { return catalog_; }
  std::uint64_t read_boundary(std::size_t, std::uint64_t element) const override {
    return element / 8 * 8;
  }
  std::vector<std::string> notes() const override { return {"a note"}; }
  mutable std::uint64_t read_bytes = 0;

 private:
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    const std::size_t first = range.begin * size_of(catalog_.tensors[tensor].dtype);
    if (first + out.size() > bytes_[tensor].size())
      raise(ErrorCode::Internal, "read of " + catalog_.tensors[tensor].label());
    std::memcpy(out.data(), bytes_[tensor].data() + first, out.size());
    read_bytes += out.size();
  }

  Catalog catalog_;
  std::vector<std::string> bytes_;
};

Dequantized open(const Model& model, const Json& config = {},
                 FrozenWeights frozen = FrozenWeights::Dequantize) {
  return dequantized(std::make_unique<Model>(model), config, frozen);
}

std::vector<float> values_of(const Source& source, std::size_t tensor, ElementRange range) {
  const DType dtype = source.catalog().tensors[tensor].dtype;
  std::vector<std::byte> bytes(range.size() * size_of(dtype));
  source.read(tensor, range, bytes);
  std::vector<float> values(range.size());
  convert_elements(dtype, bytes, DType::Float32, std::as_writable_bytes(std::span(values)));
  return values;
}

/// Reads a tensor as a whole, and expects each of its ranges to have the same values.
std::vector<float> values_of(const Source& source, const std::string& fqn) {
  const auto tensor = source.catalog().find(fqn, state::kWeights);
  if (!tensor) {
    ADD_FAILURE() << fqn << " is missing";
    return {};
  }
  const std::uint64_t elements = source.catalog().tensors[*tensor].elements();
  const std::vector<float> all = values_of(source, *tensor, {0, elements});
  for (std::uint64_t begin = 0; begin < elements; ++begin) {
    for (std::uint64_t end = begin; end <= elements; ++end) {
      const std::vector<float> part = values_of(source, *tensor, {begin, end});
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<long>(begin)))
          << fqn << ": " << begin << " to " << end;
    }
  }
  return all;
}

std::vector<std::string> names_of(const Source& source) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : source.catalog().tensors) names.push_back(tensor.fqn);
  return names;
}

constexpr int kOne = 0x38, kTwo = 0x40, kMinusOne = 0xb8;  // of float8_e4m3fn
const Json kFp8 = {{"quant_method", "fp8"}, {"weight_block_size", {2, 2}}};

// ---- scales of blocks, rows and tensors ----

TEST(Dequantize, BlocksThatOverlapTheEndHaveTheirOwnScales) {
  Model model;
  model.add("norm", DType::BFloat16, {1}, bytes_of({0x80, 0x3f}));
  model.add("a.weight", DType::Float8E4M3, {3, 5},
            bytes_of({kOne, kTwo, kOne, kOne, kTwo, kOne, kOne, kMinusOne, kOne, kOne, kOne, kOne,
                      kOne, kTwo, kMinusOne}));
  model.add_floats("a.weight_scale_inv", {2, 3}, {1, 2, 3, 10, 20, 30});
  const Dequantized result = open(model, kFp8);
  EXPECT_EQ(result.weights, 1u);
  EXPECT_THAT(names_of(*result.source), ElementsAre("norm", "a.weight"));
  EXPECT_EQ(result.source->catalog().tensors[1].dtype, DType::Float32);
  EXPECT_THAT(values_of(*result.source, "a.weight"),
              ElementsAre(1, 2, 2, 2, 6, 1, 1, -2, 2, 3, 10, 10, 20, 40, -30));
  EXPECT_THAT(values_of(*result.source, "norm"), ElementsAre(1));
}

TEST(Dequantize, ScalesHaveOneOfManyShapes) {
  const std::string numbers = bytes_of({kOne, kTwo, kMinusOne, kOne, kTwo, kMinusOne});
  const auto values = [&](const Shape& shape, const std::vector<float>& scales) {
    Model model;
    model.add("w", DType::Float8E4M3, {2, 3}, numbers).add_floats("w_scale", shape, scales);
    return values_of(*open(model).source, "w");
  };
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1}})
    EXPECT_THAT(values(shape, {4}), ElementsAre(4, 8, -4, 4, 8, -4));
  for (const Shape& shape : {Shape{2}, Shape{2, 1}})
    EXPECT_THAT(values(shape, {4, 5}), ElementsAre(4, 8, -4, 5, 10, -5));
  EXPECT_THAT(values({1, 3}, {4, 5, 6}), ElementsAre(4, 10, -6, 4, 10, -6));
  EXPECT_THAT(values({2, 3}, {1, 2, 3, 4, 5, 6}), ElementsAre(1, 4, -3, 4, 10, -6));
}

TEST(Dequantize, ExpertsOfThreeAxesHaveScalesOnEachOfThem) {
  Model model;
  model.add("w", DType::Float8E4M3, {2, 2, 2}, std::string(8, static_cast<char>(kTwo)));
  model.add_floats("w_scale", {2, 1, 2}, {1, 2, 3, 4});
  EXPECT_THAT(values_of(*open(model).source, "w"), ElementsAre(2, 4, 2, 4, 6, 8, 6, 8));
}

TEST(Dequantize, ScalesMayBeExponentsOrNarrowNumbers) {
  Model model;
  model.add("w", DType::Float8E4M3, {1, 2}, bytes_of({kOne, kTwo}));
  model.add("w_scale_inv", DType::UInt8, {1, 2}, bytes_of({128, 126}));  // 2 and 1/2
  model.add("x", DType::Float8E4M3, {1, 2}, bytes_of({kOne, kTwo}));
  model.add("x_scale_inv", DType::Float8E8M0, {1, 1}, bytes_of({129}));
  model.add("y", DType::Float8E5M2, {1, 1}, bytes_of({0x3c}));
  model.add("y_scale", DType::BFloat16, {1}, bytes_of({0x40, 0x40}));  // 3
  const Dequantized result = open(model);
  EXPECT_EQ(result.weights, 3u);
  EXPECT_THAT(values_of(*result.source, "w"), ElementsAre(2, 1));
  EXPECT_THAT(values_of(*result.source, "x"), ElementsAre(4, 8));
  EXPECT_THAT(values_of(*result.source, "y"), ElementsAre(3));
}

TEST(Dequantize, ZeroPointsAreSubtractedFirst) {
  Model model;
  model.add("w", DType::Int8, {2, 2}, bytes_of({10, -128, 127, 0}));
  model.add_floats("w_scale", {2, 1}, {0.5F, 2});
  model.add("w_zero_point", DType::Int8, {2, 1}, bytes_of({2, -1}));
  const Dequantized result = open(model, {{"quant_method", "compressed-tensors"}});
  EXPECT_THAT(names_of(*result.source), ElementsAre("w"));
  EXPECT_THAT(values_of(*result.source, "w"), ElementsAre(4, -65, 256, 2));
}

/// As compressed-tensors writes groups of columns.
Json groups_of(std::initializer_list<int> sizes) {
  Json groups = Json::object();
  for (const int size : sizes)
    groups["group_" + std::to_string(size)] = {
        {"weights", {{"strategy", "group"}, {"group_size", size}, {"block_structure", nullptr}}}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "int-quantized"},
          {"config_groups", std::move(groups)}};
}

TEST(Dequantize, ZeroPointsLieInTheOrderOfTheirScales) {
  const auto with = [](const Shape& scales, const Shape& points) {
    Model model;
    model.add("w", DType::Int8, {4, 8}).add("w_scale", DType::Float32, scales);
    return model.add("w_zero_point", DType::Int8, points);
  };
  const Json two = groups_of({4}), one = groups_of({8});  // for each row
  for (const Shape& points : {Shape{4, 2}, {8}, {4, 2, 1}})
    EXPECT_EQ(open(with({4, 2}, points), two).weights, 1u);
  for (const Shape& points : {Shape{4, 1}, {4}, {1, 4}})
    EXPECT_EQ(open(with({4, 1}, points), one).weights, 1u);
  const auto misfits = Fails(ErrorCode::Corrupt, {"w_zero_point", "do not fit"});
  for (const Shape& points : {Shape{2, 4}, {8, 1}, {1, 8}, {4, 1}, {7}})
    EXPECT_THAT(error_of([&] { open(with({4, 2}, points), two); }), misfits);
  EXPECT_THAT(error_of([&] { open(with({4, 1}, {2, 2}), one); }), misfits);
}

TEST(Dequantize, ZeroPointsThatTheConfigurationPromisesAreRequired) {
  const Json asymmetric = {{"weights", {{"num_bits", 8}, {"symmetric", false}}}};
  const Json symmetric = {{"weights", {{"num_bits", 8}, {"symmetric", true}}}};
  const auto config = [](const Json& groups) {
    return Json{{"quant_method", "compressed-tensors"}, {"config_groups", groups}};
  };
  Model model;
  model.add("a.weight", DType::Int8, {2, 2}).add("a.weight_scale", DType::Float32, {2, 1});
  const Json promised = config({{"group_0", asymmetric}});
  EXPECT_THAT(error_of([&] { open(model, promised); }), Fails(ErrorCode::Corrupt, "a.weight"));
  EXPECT_THAT(incomplete_weights(model, promised), ElementsAre(testing::HasSubstr("zero points")));
  EXPECT_EQ(open(model, config({{"group_0", symmetric}})).weights, 1u);
  // Which weights are those of a group is not known.
  EXPECT_EQ(open(model, config({{"group_0", symmetric}, {"group_1", asymmetric}})).weights, 1u);
  model.add("a.weight_zero_point", DType::Int8, {2, 1});
  EXPECT_EQ(open(model, promised).weights, 1u);
}

TEST(Dequantize, ZeroPointsThatAnotherLayerHasAreRequired) {
  const auto config = [](const Json& targets) {
    const auto group = [&](bool symmetric) {
      return Json{{"weights", {{"num_bits", 8}, {"symmetric", symmetric}}}, {"targets", targets}};
    };
    return Json{{"quant_method", "compressed-tensors"},
                {"config_groups", {{"group_0", group(true)}, {"group_1", group(false)}}}};
  };
  Model model;
  for (const char* name : {"h.0.a", "h.1.a", "h.1.b"})
    model.add(name, DType::Int8, {2, 2}).add(std::string(name) + "_scale", DType::Float32, {2, 1});
  EXPECT_EQ(open(model, config({"Linear"})).weights, 3u);
  model.add("h.0.a_zero_point", DType::Int8, {2, 1});
  EXPECT_THAT(error_of([&] { open(model, config({"Linear"})); }),
              Fails(ErrorCode::Corrupt, "h.1.a"));
  EXPECT_EQ(open(model, config({"re:h.0.*"})).weights, 3u) << "the layers may differ";
}

/// The configuration of compressed-tensors with one group, of which `weights` is the description.
Json one_group(const Json& weights, const Json& more = Json::object()) {
  Json config = {{"quant_method", "compressed-tensors"},
                 {"config_groups", {{"group_0", {{"weights", weights}}}}}};
  config.update(more);
  return config;
}

TEST(Dequantize, ScalesThatContradictTheStrategyAreRefused) {
  const auto refused = [](const Json& weights, const Shape& scales) {
    Model model;
    model.add("a.weight", DType::Int8, {4, 8}).add("a.weight_scale", DType::Float32, scales);
    const Json config = one_group(weights);
    EXPECT_EQ(incomplete_weights(model, config).size(), 1u);
    return error_of([&] { open(model, config); });
  };
  const Json channel = {{"strategy", "channel"}};
  const Json group = {{"strategy", "group"}, {"group_size", 2}};
  for (const Shape& scales : {Shape{}, Shape{1, 1}, Shape{3, 1}, Shape{1, 4}, Shape{4, 4}})
    EXPECT_THAT(refused(channel, scales), Fails(ErrorCode::Corrupt, "each row"));
  for (const Shape& scales : {Shape{1}, Shape{1, 1}, Shape{4, 1}, Shape{1, 4}, Shape{4, 2}})
    EXPECT_THAT(refused(group, scales), Fails(ErrorCode::Corrupt, "do not fit"));
  EXPECT_THAT(refused({{"strategy", "tensor"}}, {4, 1}), Fails(ErrorCode::Corrupt, "one for all"));
}

TEST(Dequantize, ScalesOfTheirStrategyAreRead) {
  const auto weights = [](const Json& config, const Shape& shape, const Shape& scales) {
    Model model;
    model.add("a.weight", DType::Int8, shape).add("a.weight_scale", DType::Float32, scales);
    return open(model, one_group(config)).weights;
  };
  const Json channel = {{"strategy", "channel"}, {"group_size", nullptr}};
  const Json group = {{"strategy", "group"}, {"group_size", 3}};
  for (const Shape& scales : {Shape{4}, Shape{4, 1}})
    EXPECT_EQ(weights(channel, {4, 8}, scales), 1u);
  for (const Shape& scales : {Shape{}, Shape{1}, Shape{1, 1}})
    EXPECT_EQ(weights(channel, {1, 8}, scales), 1u);
  EXPECT_EQ(weights(group, {4, 8}, {4, 3}), 1u);
  EXPECT_EQ(weights(group, {4, 2}, {4, 1}), 1u);
  EXPECT_EQ(weights({{"strategy", "tensor"}}, {4, 8}, {1}), 1u);
}

TEST(Dequantize, WeightsThatContradictTheConfigurationAreRefused) {
  const auto refused = [](const Json& config) {
    Model model;
    model.add("a.weight", DType::Int8, {1, 2}).add("a.weight_scale", DType::Float32, {1});
    return error_of([&] { open(model, config); });
  };
  EXPECT_THAT(refused(one_group({{"type", "float"}})), Fails(ErrorCode::Corrupt, "type"));
  EXPECT_THAT(refused(one_group({{"type", "int"}}, {{"format", "pack-quantized"}})),
              Fails(ErrorCode::Corrupt, "packed"));
  EXPECT_THAT(refused(one_group({{"type", "int"}}, {{"ignore", {"lm_head", "a"}}})),
              Fails(ErrorCode::Corrupt, "not quantized"));
}

TEST(Dequantize, ZeroPointsOfSymmetricWeightsMayOnlyBeZero) {
  const auto with = [](int point) {
    Model model;
    model.add("a.weight", DType::Int8, {2, 1}, bytes_of({1, 2}));
    model.add_floats("a.weight_scale", {2, 1}, {1, 1});
    return model.add("a.weight_zero_point", DType::Int8, {2, 1}, bytes_of({0, point}));
  };
  const Json config = one_group({{"symmetric", true}});
  EXPECT_EQ(open(with(0), config).weights, 1u);
  EXPECT_THAT(error_of([&] { open(with(3), config); }), Fails(ErrorCode::Corrupt, "symmetric"));
}

TEST(Dequantize, ScalesThatNoSizeOfBlocksMakesAreMisfits) {
  Model model;
  model.add("a", DType::Float8E4M3, {16, 2}).add("a_scale", DType::Float32, {15, 1});
  EXPECT_THAT(error_of([&] { open(model); }), Fails(ErrorCode::Corrupt, "do not fit"));
}

Model grouped(const Shape& scales = {2, 2}) {
  Model model;
  model.add("a.weight", DType::Int8, {2, 4}, bytes_of({1, 2, 3, 4, -1, -2, -3, -4}));
  model.add_floats("a.weight_scale", scales, {1, 10, 100, 1000});
  return model;
}

TEST(Dequantize, GroupsHaveTheSizeThatTheConfigurationSays) {
  EXPECT_THAT(values_of(*open(grouped(), groups_of({2})).source, "a.weight"),
              ElementsAre(1, 2, 30, 40, -100, -200, -3000, -4000));
  // Of several sizes, the one that fits; a size of -1 says that a row has one scale.
  EXPECT_THAT(values_of(*open(grouped(), groups_of({-1, 1, 2})).source, "a.weight"),
              ElementsAre(1, 2, 30, 40, -100, -200, -3000, -4000));
  EXPECT_THAT(error_of([&] {
                open(grouped(), groups_of({2, 3}));
              }),
              Fails(ErrorCode::Unsupported, "2 scales of 4 elements"));
  EXPECT_THAT(error_of([&] { open(grouped(), groups_of({1})); }),
              Fails(ErrorCode::Corrupt, "do not fit"));
}

TEST(Dequantize, ColumnsMayBelongToGroupsInAnotherOrder) {
  Model model = grouped();
  model.add("a.weight_zero_point", DType::Int8, {2, 2}, bytes_of({0, 1, 0, 0}));
  model.add("a.weight_shape", DType::Int64, {2}, std::string(16, '\0'));
  model.add("a.weight_g_idx", DType::Int32, {4},
            bytes_of({1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}));
  const Dequantized result = open(model, groups_of({2}));
  EXPECT_THAT(names_of(*result.source), ElementsAre("a.weight"));
  EXPECT_THAT(values_of(*result.source, "a.weight"),
              ElementsAre(0, 2, 20, 4, -1000, -200, -3000, -400));
}

TEST(Dequantize, GroupsThatWereNeverSetFollowTheOrderOfColumns) {
  Model model = grouped();
  model.add("a.weight_g_idx", DType::Int32, {4}, std::string(16, '\xff'));
  const Dequantized result = open(model, groups_of({2}));
  EXPECT_THAT(names_of(*result.source), ElementsAre("a.weight"));
  EXPECT_THAT(values_of(*result.source, "a.weight"),
              ElementsAre(1, 2, 30, 40, -100, -200, -3000, -4000));
}

TEST(Dequantize, GroupsThatDoNotFitTheirWeightAreRefused) {
  const auto refused = [](DType dtype, const Shape& shape, std::initializer_list<int> groups) {
    std::string bytes;
    for (const int group : groups) bytes += bytes_of({group, 0, 0, 0});
    Model model = grouped();
    model.add("a.weight_g_idx", dtype, shape, bytes);
    return error_of([&] { open(model, groups_of({2})); });
  };
  EXPECT_THAT(refused(DType::Int32, {4}, {0, 1, 2, 0}), Fails(ErrorCode::Corrupt, "group 2"));
  EXPECT_THAT(refused(DType::Int32, {4}, {0, 1, 1, 1}), Fails(ErrorCode::Corrupt, "several sizes"));
  EXPECT_THAT(refused(DType::Int32, {2, 2}, {0, 1, 1, 0}), Fails(ErrorCode::Corrupt, "column"));
  EXPECT_THAT(refused(DType::Float32, {4}, {0, 1, 1, 0}), Fails(ErrorCode::Unsupported, "type"));
  Model alone;
  alone.add("a.weight", DType::Int8, {2, 4}).add("a.weight_g_idx", DType::Int32, {4});
  EXPECT_THAT(error_of([&] { open(alone); }), Fails(ErrorCode::Unsupported, "a.weight_g_idx"));
}

TEST(Dequantize, ScalesOfActivationsAndCachesGoToo) {
  Model model;
  model.add("attn.a.weight", DType::Float8E4M3, {1}, bytes_of({kTwo}));
  model.add_floats("attn.a.weight_scale", {}, {3}).add_floats("attn.a.input_scale", {}, {9});
  model.add_floats("attn.k_scale", {1}, {1}).add_floats("attn.v_scale", {1}, {1});
  model.add_floats("logit_scale", {}, {7});
  const Dequantized result = open(model, {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}});
  EXPECT_THAT(names_of(*result.source), ElementsAre("attn.a.weight", "logit_scale"));
}

TEST(Dequantize, ParametersThatAreCalledLikeScalesStay) {
  Model model;
  model.add("m.a.weight", DType::Float8E4M3, {1}, bytes_of({kTwo}));
  model.add_floats("m.a.weight_scale", {}, {3}).add_floats("m.k_scale", {2}, {1, 2});
  model.add_floats("n.input_scale", {}, {4}).add_floats("k_scale", {}, {5});
  EXPECT_THAT(names_of(*open(model).source),
              ElementsAre("m.a.weight", "m.k_scale", "n.input_scale", "k_scale"));
}

TEST(Dequantize, TwoSizesOfBlocksThatFitAreNotGuessed) {
  Model model;
  model.add("w", DType::Float8E4M3, {192, 1}, std::string(192, static_cast<char>(kOne)));
  std::vector<float> scales = {1, 2};
  model.add_floats("w_scale_inv", {2, 1}, scales);
  EXPECT_THAT(error_of([&] { open(model); }),
              Fails(ErrorCode::Unsupported, "2 scales of 192 elements"));
  const auto ninth = [&](const Json& blocks) {
    const Dequantized result =
        open(model, {{"quant_method", "fp8"}, {"weight_block_size", blocks}});
    return values_of(*result.source, 0, {100, 101}).front();
  };
  EXPECT_EQ(ninth({128, 128}), 1);
  EXPECT_EQ(ninth({96, 128}), 2);
  // A size that makes another number of blocks is not replaced by one that fits.
  EXPECT_THAT(error_of([&] { ninth({64, 64}); }), Fails(ErrorCode::Corrupt, "do not fit"));
}

TEST(Dequantize, LargeScalesAreReadRowByRow) {
  constexpr std::uint64_t kColumns = 100000;
  Model model;
  model.add("w", DType::Float8E4M3, {2, kColumns}, std::string(2 * kColumns, '\x38'));
  std::vector<float> scales(2 * kColumns);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i);
  model.add_floats("w_scale", {2, kColumns}, scales);
  const Dequantized result = open(model);
  EXPECT_THAT(values_of(*result.source, 0, {kColumns - 1, kColumns + 1}),
              ElementsAre(kColumns - 1, kColumns));
}

// ---- scales under other names ----

TEST(Dequantize, ScalesOfDeepSeeksOwnProgramsAreThoseOfBlocks) {
  Model model;
  model.add("a.weight", DType::Float8E4M3, {1, 130}, std::string(130, static_cast<char>(kTwo)));
  model.add_floats("a.scale", {1, 2}, {3, 5});
  const Dequantized result = open(model);
  EXPECT_THAT(names_of(*result.source), ElementsAre("a.weight"));
  EXPECT_THAT(values_of(*result.source, 0, {126, 130}), ElementsAre(6, 6, 10, 10));
}

TEST(Dequantize, AMarkerOfComfyUiSaysWhatScaleWeightIs) {
  Model model;
  model.add("m.a.weight", DType::Float8E4M3, {1, 2}, bytes_of({kOne, kTwo}));
  model.add_floats("m.a.scale_weight", {}, {3}).add_floats("m.a.scale_input", {}, {1});
  model.add("m.b.weight", DType::BFloat16, {1}, bytes_of({0x80, 0x3f}));
  Model unmarked = model;
  model.add("m.scaled_fp8", DType::Float8E4M3, {2}, bytes_of({0, 0}));
  const Dequantized result = open(model);
  EXPECT_THAT(names_of(*result.source), ElementsAre("m.a.weight", "m.b.weight"));
  EXPECT_THAT(values_of(*result.source, "m.a.weight"), ElementsAre(3, 6));
  EXPECT_THAT(error_of([&] { open(unmarked); }),
              Fails(ErrorCode::Unsupported, "m.a.scale_weight [weights] may be the scales"));
}

TEST(Dequantize, DescriptionsOfComfyUiGoWithOneScale) {
  Model model;
  model.add("a.weight", DType::Float8E4M3, {1, 2}, bytes_of({kOne, kTwo}));
  model.add_floats("a.weight_scale", {}, {3}).add("a.comfy_quant", DType::UInt8, {2}, "{}");
  EXPECT_THAT(names_of(*open(model).source), ElementsAre("a.weight"));
  model.edit().tensors[1].shape = {1, 2};
  EXPECT_THAT(error_of([&] { open(model); }), Fails(ErrorCode::Unsupported, "ComfyUI"));
}

/// MLX packs the numbers of a weight into 32 bits, and other programs do so under names of their
/// own.
TEST(Dequantize, PackedIntegersAreRefused) {
  const auto refused = [](const char* packed, const char* beside) {
    Model model;
    model.add(packed, DType::UInt32, {2, 4}).add(beside, DType::Float16, {2, 1});
    return error_of([&] { open(model); });
  };
  EXPECT_THAT(refused("a.weight", "a.scales"),
              Fails(ErrorCode::Unsupported, {"a.weight", "a.scales"}));
  EXPECT_THAT(refused("a.q_weight", "a.q_scale"), Fails(ErrorCode::Unsupported, "EXL2"));
  EXPECT_THAT(refused("a.trellis", "a.suh"), Fails(ErrorCode::Unsupported, "EXL3"));
  EXPECT_THAT(refused("a.Qidxs", "a.SU"), Fails(ErrorCode::Unsupported, "QuIP#"));
  Model table;  // of numbers that are no weights
  table.add("a.weight", DType::Int64, {2, 4}).add("b.scales", DType::Float16, {2, 1});
  table.add("c.index", DType::UInt32, {2, 4}).add("c.scales", DType::Float16, {2, 1});
  EXPECT_EQ(open(table).weights, 0u);
}

TEST(Dequantize, WhatMayBeTheScalesOfNarrowNumbersIsNotLeftAside) {
  const auto refused = [](const char* scales, DType weight, const Shape& shape) {
    Model model;
    model.add("a.weight", weight, {2, 4}).add(scales, DType::Float32, shape);
    return error_of([&] { open(model); });
  };
  for (const DType weight : {DType::Float8E4M3, DType::Float8E5M2, DType::Int8, DType::UInt8}) {
    for (const char* scales : {"a.weight.scale", "a.weight_inv_scale", "a.qscale", "a.scale",
                               "a.scale_weight", "a.weight_absmax", "a.weight.scales"})
      EXPECT_THAT(refused(scales, weight, {2}), Fails(ErrorCode::Unsupported, scales));
  }
  const auto passed = [](const char* other, const Shape& shape) {
    Model model;
    model.add("a.weight", DType::Float8E4M3, {2, 4}).add(other, DType::Float32, shape);
    return open(model).weights == 0;
  };
  EXPECT_TRUE(passed("a.logit_scale", {}));
  EXPECT_TRUE(passed("b.scale", {2}));
  EXPECT_TRUE(passed("scale", {2}));
  EXPECT_TRUE(passed("a.zero", {2}));
  EXPECT_TRUE(passed("a.scale", {100}));
  Model cast;  // all parameters of a model, its scales too
  cast.add("a.shift", DType::Float8E4M3, {2}).add("a.scale", DType::Float8E4M3, {2});
  EXPECT_EQ(open(cast).weights, 0u);
  Model top;  // values beside each other in no module
  top.add("flags", DType::UInt8, {2, 2}).add("scale", DType::Float32, {});
  EXPECT_EQ(open(top).weights, 0u);
  top.add("flags_scale", DType::Float32, {});
  EXPECT_THAT(error_of([&] { open(top); }), Fails(ErrorCode::Unsupported, "flags_scale"));
  Model mask;
  mask.add("a.bias", DType::UInt8, {2, 2}).add_floats("a.scale", {}, {1});
  EXPECT_EQ(open(mask).weights, 0u);
}

// ---- bitsandbytes ----

const char* const kState =
    R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [5, 13]})";
constexpr std::array<float, 16> kNf4 = {-1.0F,
                                        -0.6961928009986877F,
                                        -0.5250730514526367F,
                                        -0.39491748809814453F,
                                        -0.28444138169288635F,
                                        -0.18477343022823334F,
                                        -0.09105003625154495F,
                                        0.0F,
                                        0.07958029955625534F,
                                        0.16093020141124725F,
                                        0.24611230194568634F,
                                        0.33791524171829224F,
                                        0.44070982933044434F,
                                        0.5626170039176941F,
                                        0.7229568362236023F,
                                        1.0F};

/// 65 numbers in blocks of 64; the last byte holds one number.
Model four_bits(const std::string& state = kState, const std::string& fqn = "a.weight") {
  Model model;
  std::string packed(32, static_cast<char>(0xf0));  // 1, -1, 1, -1, ...
  packed += static_cast<char>(0x80);
  model.add(fqn, DType::UInt8, {33, 1}, packed);
  model.add_floats(fqn + ".absmax", {2}, {2, 10});
  model.add_floats(fqn + ".quant_map", {16}, {kNf4.begin(), kNf4.end()});
  model.add(fqn + ".quant_state.bitsandbytes__nf4", DType::UInt8, {state.size()}, state);
  return model;
}

TEST(Dequantize, FourBitNumbersAreOfATable) {
  const Dequantized result = open(four_bits());
  EXPECT_THAT(names_of(*result.source), ElementsAre("a.weight"));
  const TensorInfo& tensor = result.source->catalog().tensors[0];
  EXPECT_EQ(tensor.shape, (Shape{5, 13}));
  EXPECT_EQ(tensor.dtype, DType::Float32);
  std::vector<float> expected;
  for (int i = 0; i < 64; ++i) expected.push_back(i % 2 == 0 ? 2 : -2);
  expected.push_back(kNf4[8] * 10);
  EXPECT_EQ(values_of(*result.source, "a.weight"), expected);
  EXPECT_EQ(result.source->read_boundary(0, 37), 32u);  // 16 bytes
}

TEST(Dequantize, PackedBytesMayCallThemselvesAnotherType) {
  Model model =
      four_bits(R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [66]})");
  model.edit().tensors[0].dtype = DType::BFloat16;  // 33 bytes are 16.5 of them
  EXPECT_THAT(error_of([&] { open(model); }), Fails(ErrorCode::Corrupt, "a.weight"));
  Model even;
  even.add("w", DType::BFloat16, {1, 1}, bytes_of({0xf0, 0x7f}));
  even.add_floats("w.absmax", {1}, {1.00390625F});
  even.add_floats("w.quant_map", {16}, {kNf4.begin(), kNf4.end()});
  const std::string state =
      R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [2, 2]})";
  even.add("w.quant_state.bitsandbytes__nf4", DType::UInt8, {state.size()}, state);
  const Dequantized result = open(even);
  EXPECT_EQ(result.source->catalog().tensors[0].dtype, DType::BFloat16);
  // 1.00390625 lies between two bfloat16 numbers; the even one is 1.
  EXPECT_THAT(values_of(*result.source, "w"), ElementsAre(1, -1, 0, 1));
}

TEST(Dequantize, NestedScalesAreNumbersOfATableThemselves) {
  Model model;
  model.add("w", DType::UInt8, {2, 1}, bytes_of({0xff, 0xf7}));
  model.add("w.absmax", DType::UInt8, {1}, bytes_of({3}));
  model.add_floats("w.quant_map", {16}, {kNf4.begin(), kNf4.end()});
  std::vector<float> table(256);
  table[3] = 0.25F;
  model.add_floats("w.nested_quant_map", {256}, table).add_floats("w.nested_absmax", {1}, {8});
  const std::string state =
      R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [4],)"
      R"( "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5})";
  model.add("w.quant_state.bitsandbytes__nf4", DType::UInt8, {state.size()}, state);
  const Dequantized result = open(model);
  EXPECT_THAT(names_of(*result.source), ElementsAre("w"));
  EXPECT_THAT(values_of(*result.source, "w"), ElementsAre(2.5F, 2.5F, 2.5F, 0));
}

TEST(Dequantize, SharedTablesAreFoundUnderTheirSecondNames) {
  Model model = four_bits();
  const Model other = four_bits(kState, "b.weight");
  for (const char* side : {"", ".absmax", ".quant_state.bitsandbytes__nf4"}) {
    const std::size_t tensor =
        *other.catalog().find("b.weight" + std::string(side), state::kWeights);
    model.edit().tensors.push_back(other.catalog().tensors[tensor]);
  }
  model.edit().aliases = {{"b.weight.quant_map", "a.weight.quant_map"},
                          {"lm_head.weight", "a.weight"}};
  Model whole;  // with the bytes
  for (const TensorInfo& tensor : model.catalog().tensors) {
    const Model& from = tensor.fqn.starts_with("a") ? model : other;
    const std::size_t number = *from.catalog().find(tensor.fqn, state::kWeights);
    const std::vector<std::byte> bytes = read_all(from, number);
    whole.add(tensor.fqn, tensor.dtype, tensor.shape,
              {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  whole.edit().aliases = model.catalog().aliases;
  const Dequantized result = open(whole);
  EXPECT_EQ(result.weights, 2u);
  EXPECT_THAT(names_of(*result.source), ElementsAre("a.weight", "b.weight"));
  EXPECT_EQ(result.source->catalog().aliases, (std::vector<Alias>{{"lm_head.weight", "a.weight"}}));
}

TEST(Dequantize, RowsOfInt8HaveAScaleOf127Parts) {
  Model model;
  model.add("a.weight", DType::Int8, {2, 2}, bytes_of({127, -127, 1, 0}));
  model.add_floats("a.SCB", {2}, {3, 127}).add("a.weight_format", DType::UInt8, {}, bytes_of({0}));
  const Dequantized result = open(model, {{"quant_method", "bitsandbytes"}});
  EXPECT_THAT(names_of(*result.source), ElementsAre("a.weight"));
  const float third = 381.0F * 7.874015718698502e-3F;
  EXPECT_THAT(values_of(*result.source, "a.weight"),
              ElementsAre(third, -third, 127.0F * 7.874015718698502e-3F, 0));
}

TEST(Dequantize, DescriptionsThatLieAreRefused) {
  const auto refused = [](const std::string& state) {
    return error_of([&] { open(four_bits(state)); });
  };
  const auto with = [](const char* key, const Json& value) {
    Json state = parse_json(kState, "test");
    state[key] = value;
    return state.dump();
  };
  EXPECT_THAT(refused("{"), Fails(ErrorCode::Corrupt, "quant_state"));
  EXPECT_THAT(refused("[]"), Fails(ErrorCode::Corrupt, "not a JSON object"));
  EXPECT_THAT(refused("{}"), Fails(ErrorCode::Corrupt, "dtype is missing"));
  EXPECT_THAT(refused(with("dtype", "float64")), Fails(ErrorCode::Corrupt, "dtype"));
  EXPECT_THAT(refused(with("dtype", 1)), Fails(ErrorCode::Corrupt, "dtype is not text"));
  EXPECT_THAT(refused(with("blocksize", 0)), Fails(ErrorCode::Corrupt, "blocksize"));
  EXPECT_THAT(refused(with("blocksize", -64)), Fails(ErrorCode::Corrupt, "blocksize"));
  EXPECT_THAT(refused(with("blocksize", 32)), Fails(ErrorCode::Corrupt, "2 elements instead of 3"));
  EXPECT_THAT(refused(with("shape", {5, 14})), Fails(ErrorCode::Corrupt, "33 bytes"));
  EXPECT_THAT(refused(with("shape", {1ULL << 40, 1ULL << 40})), Fails(ErrorCode::Corrupt, ""));
  EXPECT_THAT(refused(with("shape", Json())), Fails(ErrorCode::Corrupt, "shape"));
  EXPECT_THAT(refused(with("shape", {-5, -13})), Fails(ErrorCode::Corrupt, "shape"));
  EXPECT_THAT(refused(with("quant_type", "fp4")), Fails(ErrorCode::Corrupt, "another type"));
  Model huge = four_bits();
  huge.edit().tensors[3].shape = {1ULL << 50};
  EXPECT_THAT(error_of([&] { open(huge); }), Fails(ErrorCode::Corrupt, "at most 65536 are read"));
}

TEST(Dequantize, MissingAndForeignSideTensorsAreRefused) {
  for (const std::size_t side : {std::size_t{1}, std::size_t{2}}) {
    Model model = four_bits();
    model.edit().tensors[side].fqn = "elsewhere";
    EXPECT_THAT(error_of([&] { open(model); }), Fails(ErrorCode::Corrupt, "is missing"));
  }
  Model no_state = four_bits();
  no_state.edit().tensors[3].fqn = "elsewhere";
  EXPECT_THAT(error_of([&] { open(no_state); }), Fails(ErrorCode::Unsupported, "a.weight.absmax"));
  Model no_weight = four_bits();
  no_weight.edit().tensors[0].fqn = "elsewhere";
  EXPECT_THAT(error_of([&] { open(no_weight); }), Fails(ErrorCode::Unsupported, "bitsandbytes"));
  Model other_table;
  other_table.add("w", DType::UInt8, {1}, "x").add_floats("w.absmax", {1}, {1});
  other_table.add_floats("w.quant_map", {16}, std::vector<float>(16));
  const std::string state =
      R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [2]})";
  other_table.add("w.quant_state.bitsandbytes__nf4", DType::UInt8, {state.size()}, state);
  EXPECT_THAT(error_of([&] { open(other_table); }), Fails(ErrorCode::Unsupported, "quant_map"));
}

TEST(Dequantize, PackedBytesWithoutTheirDescriptionAreNoNumbers) {
  const Json config = {{"quant_method", "bitsandbytes"},
                       {"load_in_4bit", true},
                       {"bnb_4bit_quant_storage", "bfloat16"}};
  Model model;
  model.add("w", DType::BFloat16, {8, 1});
  EXPECT_THAT(error_of([&] { open(model, config); }), Fails(ErrorCode::Unsupported, "w"));
}

// ---- torchao and MXFP4 ----

TEST(Dequantize, PartsOfTorchaoAreFoundByTheMetadata) {
  Model model;
  model.add("a._weight_qdata", DType::Int8, {2, 4}, bytes_of({1, 2, 3, 4, -1, -2, -3, -4}));
  model.add_floats("a._weight_scale", {2, 2}, {1, 10, 100, 1000});
  model.add("a._weight_zero_point", DType::Int8, {2, 2}, bytes_of({1, 0, 0, 0}));
  model.add_floats("b", {1}, {5});
  model.edit().producer = {
      {"metadata",
       {{"format", "pt"},
        {"tensor_names", R"(["a.weight", "b"])"},
        {"a.weight", R"({"_type": "IntxUnpackedToInt8Tensor", "_data": {"block_size": [1, 2],)"
                     R"( "dtype": {"_type": "torch.dtype", "_data": "bfloat16"}},)"
                     R"( "_tensor_data_names": ["qdata", "scale", "zero_point"]})"},
        {"b", R"({"_type": "Tensor"})"}}}};
  const Dequantized result = open(model, {{"quant_method", "torchao"}});
  EXPECT_THAT(names_of(*result.source), ElementsAre("a.weight", "b"));
  EXPECT_EQ(result.source->catalog().tensors[0].dtype, DType::BFloat16);
  EXPECT_THAT(values_of(*result.source, "a.weight"),
              ElementsAre(0, 1, 30, 40, -100, -200, -3008, -4000));  // 3000 is no bfloat16
  EXPECT_EQ(result.source->catalog().producer["metadata"], Json({{"format", "pt"}}));
}

Model torchao(const std::string& description) {
  Model model;
  model.add("a._weight_qdata", DType::Int8, {2, 4}).add("a._weight_scale", DType::Float32, {2});
  model.edit().producer = {
      {"metadata", {{"tensor_names", R"(["a.weight"])"}, {"a.weight", description}}}};
  return model;
}

/// The description of a class with two scales, and more of its "_data" behind a comma.
std::string described(const std::string& name, const std::string& more = {}) {
  return R"({"_type": ")" + name + R"(", "_data": {"dtype": {"_type": "torch.dtype", "_data": )" +
         R"("bfloat16"})" + more + R"(}, "_tensor_data_names": ["qdata", "scale"]})";
}

TEST(Dequantize, PartsThatTorchaoListsAreRequired) {
  const std::string text = described("Int8Tensor");
  const auto with = [&](const std::string& parts) {
    const std::string end = R"("scale"])";
    return text.substr(0, text.find(end)) + parts + "}";
  };
  EXPECT_EQ(open(torchao(text)).weights, 1u);
  for (const std::string& description :
       {with(R"("scale", "zero_point"])"), described("IntxUnpackedToInt8Tensor")})
    EXPECT_THAT(error_of([&] { open(torchao(description)); }),
                Fails(ErrorCode::Corrupt, "\"a.weight\": its zero_point of torchao is missing"));
  EXPECT_THAT(error_of([&] { open(torchao(with(R"("scale", "odd"])"))); }),
              Fails(ErrorCode::Unsupported, "odd"));
  EXPECT_THAT(error_of([&] { open(torchao(with(R"(1])"))); }),
              Fails(ErrorCode::Corrupt, "not a list of names"));
  const Model model = torchao(with(R"("scale", "zero_point"])"));
  EXPECT_THAT(incomplete_weights(model, {}), ElementsAre(testing::HasSubstr("zero_point")));
}

TEST(Dequantize, NumbersOfTorchaoHaveTheTypeOfTheirClass) {
  const auto opened = [](const char* name, DType dtype, DType points) {
    Model model = torchao(described(name));
    model.edit().tensors[0].dtype = dtype;
    model.add("a._weight_zero_point", points, {2});
    return error_of([&] { open(model); });
  };
  for (const char* name : {"Int8Tensor", "IntxUnpackedToInt8Tensor"}) {
    for (const DType dtype : {DType::UInt8, DType::Float8E4M3, DType::Bool})
      EXPECT_THAT(opened(name, dtype, DType::Int8), Fails(ErrorCode::Corrupt, name));
    for (const DType points : {DType::UInt8, DType::Float8E4M3})
      EXPECT_THAT(opened(name, DType::Int8, points), Fails(ErrorCode::Corrupt, "zero points"));
  }
  for (const DType dtype : {DType::UInt8, DType::Int8, DType::Float8E8M0})
    EXPECT_THAT(opened("Float8Tensor", dtype, DType::Int8),
                Fails(ErrorCode::Corrupt, "Float8Tensor"));
  Model float8 = torchao(described("Float8Tensor"));
  float8.edit().tensors[0].dtype = DType::Float8E5M2;
  EXPECT_EQ(open(float8).weights, 1u);
}

TEST(Dequantize, ScalesOfTorchaoHaveTheShapeOfTheirBlocks) {
  const auto opened = [](const char* block, const Shape& points) {
    Model model = torchao(described("Int8Tensor", std::string(R"(, "block_size": )") + block));
    model.edit().tensors[1].shape = {2, 2};
    model.add("a._weight_zero_point", DType::Int8, points);
    return error_of([&] { open(model); });
  };
  EXPECT_THAT(opened("[2, 1]", {2, 2}), Fails(ErrorCode::Corrupt, "a._weight_scale"));  // 1 x 4
  EXPECT_THAT(opened("[1, 2]", {4}), Fails(ErrorCode::Corrupt, "a._weight_zero_point"));
  EXPECT_THAT(opened("[1, 2]", {1, 4}), Fails(ErrorCode::Corrupt, "a._weight_zero_point"));
}

TEST(Dequantize, DescriptionsOfTorchaoSayTheTypeOfTheWeight) {
  for (const char* data : {"", R"(, "_data": {})", R"(, "_data": {"dtype": null})",
                           R"(, "_data": {"dtype": "bfloat16"})", R"(, "_data": 1)"}) {
    EXPECT_THAT(
        error_of([&] { open(torchao(std::string(R"({"_type": "Int8Tensor")") + data + "}")); }),
        Fails(ErrorCode::Corrupt, "does not say its type"))
        << data;
  }
}

TEST(Dequantize, OtherClassesAndBlocksOfTorchaoAreRefused) {
  const auto refused = [](const std::string& description) {
    return error_of([&] { open(torchao(description)); });
  };
  EXPECT_THAT(refused(R"({"_type": "Int4Tensor", "_data": {}})"),
              Fails(ErrorCode::Unsupported, "Int4Tensor"));
  for (const char* block : {"[0, 2]", "[1, 3]", "[4]", "[18446744073709551615, 1]"}) {
    EXPECT_THAT(refused(described("Int8Tensor", std::string(R"(, "block_size": )") + block)),
                Fails(ErrorCode::Corrupt, "do not fit blocks"))
        << block;
  }
  EXPECT_THAT(refused(described("Int8Tensor", R"(, "block_size": [-1, "x"])")),
              Fails(ErrorCode::Corrupt, "block_size"));
  EXPECT_THAT(refused("not JSON"), Fails(ErrorCode::Unsupported, "torchao"));
}

TEST(Dequantize, ExpertsInMxfp4AreTransposed) {
  constexpr std::array<float, 8> kValues = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  constexpr std::size_t kOutputs = 3, kInputs = 64;
  std::string packed, exponents;
  std::vector<float> expected(kOutputs * kInputs);
  for (std::size_t output = 0; output < kOutputs; ++output) {
    for (std::size_t input = 0; input < kInputs; input += 2) {
      const std::size_t low = (input + output) % 8, high = (input / 2) % 8;
      packed += static_cast<char>(low | (high | 8) << 4);
      const std::size_t group = input / 32;
      const float scale = group == 0 ? 1.0F : static_cast<float>(2 << output);
      if (input % 32 == 0) exponents += static_cast<char>(group == 0 ? 127 : 128 + output);
      expected[input * kOutputs + output] = kValues[low] * scale;
      expected[(input + 1) * kOutputs + output] = -kValues[high] * scale;
    }
  }
  Model model;
  model.add("e.up_blocks", DType::UInt8, {1, kOutputs, 2, 16}, packed);
  model.add("e.up_scales", DType::UInt8, {1, kOutputs, 2}, exponents);
  const Dequantized result = open(model);
  EXPECT_THAT(names_of(*result.source), ElementsAre("e.up"));
  EXPECT_EQ(result.source->catalog().tensors[0].shape, (Shape{1, kInputs, kOutputs}));
  EXPECT_EQ(values_of(*result.source, "e.up"), expected);
  model.edit().tensors[1].shape = {1, 6};
  EXPECT_THAT(error_of([&] { open(model); }), Fails(ErrorCode::Corrupt, "MXFP4"));
  model.edit().tensors[0].shape = {1, 1, 3, 32};
  model.edit().tensors[1].shape = {1, 1, 3};
  EXPECT_THAT(error_of([&] { open(model); }), Fails(ErrorCode::Corrupt, "MXFP4"));
}

// ---- what is not dequantized ----

TEST(Dequantize, NothingQuantizedIsTheSourceItself) {
  Model model;
  model.add("w", DType::Float8E4M3, {2}).add("logit_scale", DType::Float32, {});
  model.add("q_weight", DType::Int8, {4, 4}).add("mask", DType::Bool, {4, 4});
  auto source = std::make_unique<Model>(model);
  const Source* const before = source.get();
  const Dequantized result = dequantized(std::move(source), {});
  EXPECT_EQ(result.source.get(), before);
  EXPECT_EQ(result.weights, 0u);
}

TEST(Dequantize, WhatIsNotUnderstoodIsRefusedByName) {
  const auto refused = [](const char* fqn, DType dtype, const Json& config = {}) {
    Model model;
    model.add("a.weight", DType::BFloat16, {2, 2}).add(fqn, dtype, {2, 2});
    model.add("b.codes", DType::BFloat16, {2, 2});  // those of AQLM's codebooks
    return error_of([&] { open(model, config); });
  };
  for (const char* part : {"qweight", "qzeros", "g_idx"})
    EXPECT_THAT(refused((std::string("b.") + part).c_str(), DType::Int32),
                Fails(ErrorCode::Unsupported, "GPTQ"));
  EXPECT_THAT(refused("b.codebooks", DType::Float16), Fails(ErrorCode::Unsupported, "AQLM"));
  EXPECT_THAT(refused("b.W_q", DType::UInt8), Fails(ErrorCode::Unsupported, "HQQ"));
  EXPECT_THAT(refused("b.weight_packed", DType::Int32), Fails(ErrorCode::Unsupported, "packed"));
  EXPECT_THAT(refused("b.weight_scale_inv", DType::Float32),
              Fails(ErrorCode::Unsupported, "b.weight_scale_inv"));
  for (const char* part : {"b.SCB", "b.weight_format", "b.weight.quant_map"})
    EXPECT_THAT(refused(part, DType::Float32), Fails(ErrorCode::Unsupported, "bitsandbytes"));
  EXPECT_THAT(refused("b.dense_weights", DType::Int32), Fails(ErrorCode::Unsupported, "SpQR"));
  const Json fp8 = {{"quant_method", "fp8"}}, bitnet = {{"quant_method", "bitnet"}};
  EXPECT_THAT(refused("b.weight", DType::Float8E4M3, fp8),
              Fails(ErrorCode::Unsupported, "b.weight"));
  EXPECT_THAT(refused("b.weight", DType::UInt8, bitnet), Fails(ErrorCode::Unsupported, "bitnet"));
  EXPECT_THAT(refused("a.weight_scale", DType::Float32, fp8),
              Fails(ErrorCode::Unsupported, "a.weight_scale"));
}

TEST(Dequantize, MethodsThatAreNotKnownAreRefusedWhateverTheirNames) {
  Model model;
  model.add("w", DType::Float8E4M3, {2}).add("w_scale", DType::Float32, {1});
  EXPECT_THAT(error_of([&] {
                open(model, {{"quant_method", "quark"}});
              }),
              Fails(ErrorCode::Unsupported, "quark"));
  Model plain;
  plain.add("a.weight", DType::Int32, {16}).add("b.weight", DType::BFloat16, {2, 2});
  EXPECT_THAT(error_of([&] {
                open(plain, {{"quant_method", "spqr"}});
              }),
              Fails(ErrorCode::Unsupported, "spqr"));
  Model frozen = plain;
  for (TensorInfo& tensor : frozen.edit().tensors) tensor.frozen = true;
  EXPECT_EQ(open(frozen, {{"quant_method", "spqr"}}, FrozenWeights::Keep).weights, 0u);
  Model marlin;
  marlin.add("a.B", DType::Int32, {2, 2}).add("a.s", DType::Float16, {1, 2});
  EXPECT_EQ(open(marlin).weights, 0u);  // any two parameters may have these names
  marlin.add("a.workspace", DType::Int32, {16});
  EXPECT_THAT(error_of([&] { open(marlin); }), Fails(ErrorCode::Unsupported, "Marlin"));
  Model blocks;
  blocks.add("e.up_blocks", DType::UInt8, {2, 4, 2, 16});
  EXPECT_THAT(error_of([&] { open(blocks); }), Fails(ErrorCode::Unsupported, "MXFP4"));
  Model int8;
  int8.add("w", DType::Int8, {2}).add("w_scale", DType::Float32, {1});
  EXPECT_THAT(error_of([&] { open(int8); }), Fails(ErrorCode::Unsupported, "is missing"));
  Model packed;
  packed.add("w", DType::Int8, {2}).add("w_scale_inv", DType::Float32, {1});
  EXPECT_THAT(error_of([&] { open(packed, kFp8); }), Fails(ErrorCode::Unsupported, "4-bit"));
  Model both;
  both.add("w", DType::Float8E4M3, {2}).add("w_scale_inv", DType::Float32, {1});
  both.add("w_scale", DType::Float32, {1});
  EXPECT_THAT(error_of([&] { open(both, kFp8); }), Fails(ErrorCode::Unsupported, "both"));
}

TEST(Dequantize, ScalesThatDoNotFitAreRefused) {
  const auto refused = [](const Shape& weight, const Shape& scales, const Json& config = kFp8) {
    Model model;
    model.add("w", DType::Float8E4M3, weight).add("w_scale_inv", DType::Float32, scales);
    return error_of([&] { open(model, config); });
  };
  EXPECT_THAT(refused({4, 4}, {3, 2}), Fails(ErrorCode::Corrupt, "do not fit"));
  EXPECT_THAT(refused({4, 4}, {0, 2}), Fails(ErrorCode::Corrupt, "do not fit"));
  EXPECT_THAT(refused({4, 4}, {8, 8}), Fails(ErrorCode::Corrupt, "do not fit"));
  EXPECT_THAT(refused({4, 4}, {4, 1, 1}), Fails(ErrorCode::Corrupt, "do not fit"));
  EXPECT_THAT(refused({4, 4}, {3}), Fails(ErrorCode::Corrupt, "do not fit"));
  // One scale, or one for each row or element, is not one for each block of weight_block_size.
  for (const Shape& scales : {Shape{}, {1}, {4}, {1, 1}, {1, 2}, {2, 1}, {4, 1}, {4, 4}, {4, 2}})
    EXPECT_THAT(refused({4, 4}, scales), Fails(ErrorCode::Corrupt, "do not fit"));
  EXPECT_THAT(refused({1ULL << 60, 4}, {1ULL << 61, 4}), Fails(ErrorCode::Corrupt, "do not fit"));
  for (const Json& block : {Json({0, 2}), Json({2}), Json({-1, 2}), Json("2"), Json({1.5, 2})}) {
    EXPECT_THAT(refused({4, 4}, {2, 2}, {{"quant_method", "fp8"}, {"weight_block_size", block}}),
                Fails(ErrorCode::Corrupt, "block size"));
  }
}

TEST(Dequantize, FrozenWeightsOfARunMayStayAsTheyAre) {
  Model model = four_bits();
  model.edit().tensors[0].frozen = true;
  model.add_floats("lora", {1}, {1});
  model.last().state = state::kFp32;
  const Dequantized kept = open(model, {}, FrozenWeights::Keep);
  EXPECT_EQ(kept.weights, 0u);
  EXPECT_EQ(kept.kept, 1u);
  EXPECT_EQ(names_of(*kept.source), names_of(model));
  EXPECT_EQ(kept.source->catalog().tensors[0].dtype, DType::UInt8);
  EXPECT_TRUE(kept.incomplete.empty());
  Model cut = model;
  for (TensorInfo& tensor : cut.edit().tensors) {
    if (tensor.fqn.ends_with(".absmax")) tensor.fqn = "other";
  }
  const Dequantized without = open(cut, {}, FrozenWeights::Keep);
  EXPECT_THAT(without.incomplete, ElementsAre(testing::HasSubstr("absmax is missing")));
  const Dequantized all = open(model);
  EXPECT_EQ(all.weights, 1u);
  EXPECT_TRUE(all.source->catalog().tensors[0].frozen);
  EXPECT_THAT(names_of(*all.source), ElementsAre("a.weight", "lora"));
}

TEST(Dequantize, AWeightIsOfOneKind) {
  Model model;
  model.add("a.weight", DType::Int8, {2, 2}).add("a.SCB", DType::Float32, {2});
  model.add("a.weight_scale", DType::Float32, {2, 1});
  EXPECT_THAT(error_of([&] {
                open(model, {{"quant_method", "compressed-tensors"}});
              }),
              Fails(ErrorCode::Corrupt, "two kinds"));
}

TEST(Dequantize, ReadsOnlyWhatItNeeds) {
  Model model;
  constexpr std::uint64_t kRows = 4096;
  model.add("w", DType::Float8E4M3, {kRows, 256}, std::string(kRows * 256, '\x38'));
  model.add_floats("w_scale", {kRows, 1}, std::vector<float>(kRows, 3));
  auto source = std::make_unique<Model>(model);
  const Model* const inner = source.get();
  const Dequantized result = dequantized(std::move(source), {});
  EXPECT_EQ(inner->read_bytes, 0u);
  EXPECT_THAT(values_of(*result.source, 0, {1000, 1002}), ElementsAre(3, 3));
  EXPECT_LE(inner->read_bytes, 16u);
}

}  // namespace
}  // namespace unishard::converters
