// What zero_to_fp32 and convert make of models with quantized weights.
#include "unishard/format/json.hpp"
#include "unishard/format/storage.hpp"

#include "expect.hpp"
#include "fixtures.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>

namespace unishard::test {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Tensor {
  std::string name, dtype;
  Json shape;
  std::string bytes;
  bool operator==(const Tensor&) const = default;
};

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

void write_safetensors(const Path& path, const std::vector<Tensor>& tensors,
                       const Json& metadata = {}) {
  Json header = Json::object();
  if (!metadata.is_null()) header["__metadata__"] = metadata;
  std::string data;
  for (const Tensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(sizeof(std::uint64_t), '\0');
  const std::uint64_t size = text.size();
  std::memcpy(length.data(), &size, sizeof size);
  write_file(path, length + text + data);
}

/// The tensors of a file by name.
std::vector<Tensor> read_safetensors(const Path& path) {
  const std::string file = read_file(path);
  std::uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof size);
  Json header = parse_json(file.substr(sizeof size, size), path.string());
  header.erase("__metadata__");
  std::vector<Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    const std::uint64_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    tensors.push_back({name, entry["dtype"], entry["shape"],
                       file.substr(sizeof size + size + begin, end - begin)});
  }
  std::ranges::sort(tensors, {}, &Tensor::name);
  return tensors;
}

/// A weight of two blocks: 1 and 2 times 0.5, 1 and -1 times 3.
class QuantizedModels : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(model_);
    write_safetensors(model_ / "model.safetensors", tensors_);
    write_file(model_ / "config.json", config_.dump());
  }

  Json config_of(const Path& folder) {
    return parse_json(read_file(folder / "config.json"), "config.json");
  }
  Path out() { return temp_.path() / ("out" + std::to_string(outputs_++)); }

  const TempDir temp_;
  const Path model_ = temp_.path() / "model";
  const std::vector<Tensor> tensors_ = {{"norm", "BF16", {1}, "\x80\x3f"},
                                        {"w", "F8_E4M3", {1, 4}, "\x38\x40\x38\xb8"},
                                        {"w_scale_inv", "F32", {1, 2}, floats({0.5F, 3})}};
  const Json quantization_ = {{"quant_method", "fp8"}, {"weight_block_size", {1, 2}}};
  const Json config_ = {{"torch_dtype", "float8_e4m3fn"},
                        {"quantization_config", quantization_},
                        {"text_config", {{"quantization_config", quantization_}, {"layers", 2}}}};
  int outputs_ = 0;
};

TEST_F(QuantizedModels, BecomeNumbersInFloat32) {
  const Path folder = out();
  const ProcessResult result = unishard({"zero_to_fp32", model_, folder});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("1 quantized weights are dequantized"));
  EXPECT_EQ(read_safetensors(folder / "model.safetensors"),
            (std::vector<Tensor>{{"norm", "F32", {1}, floats({1})},
                                 {"w", "F32", {1, 4}, floats({0.5F, 1, 3, -3})}}));
  EXPECT_EQ(config_of(folder),
            (Json{{"torch_dtype", "float32"}, {"text_config", {{"layers", 2}}}}));
}

TEST_F(QuantizedModels, BecomeNumbersOfTheTypeAskedFor) {
  const std::vector<Tensor> expected = {
      {"norm", "BF16", {1}, "\x80\x3f"},
      {"w", "BF16", {1, 4}, std::string("\x00\x3f\x80\x3f\x40\x40\x40\xc0", 8)}};
  for (const char* weights_only : {"", "--weights-only"}) {
    const Path folder = out();
    std::vector<std::string> arguments = {"convert",     model_,    folder, "--to",
                                          "safetensors", "--dtype", "bf16"};
    if (*weights_only != '\0') arguments.emplace_back(weights_only);
    const ProcessResult result = unishard(arguments);
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(read_safetensors(folder / "model.safetensors"), expected);
    EXPECT_EQ(config_of(folder)["torch_dtype"], "bfloat16");
    EXPECT_THAT(config_of(folder).dump(), Not(HasSubstr("quantization_config")));
  }
  const Path file = temp_.path() / "one.safetensors";  // of the file, whose folder has the config
  const ProcessResult one = unishard({"zero_to_fp32", model_ / "model.safetensors", file, "--dtype",
                                      "bf16", "-q", "--no-check-input"});
  ASSERT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(read_safetensors(file), expected);
}

TEST_F(QuantizedModels, AreCopiedAsTheyAreWithoutAType) {
  for (const char* weights_only : {"", "--weights-only"}) {
    const Path folder = out();
    std::vector<std::string> arguments = {"convert", model_, folder, "--to", "safetensors"};
    if (*weights_only != '\0') arguments.emplace_back(weights_only);
    const ProcessResult result = unishard(arguments);
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(read_safetensors(folder / "model.safetensors"), tensors_);
    EXPECT_EQ(config_of(folder), config_);
  }
}

TEST_F(QuantizedModels, GoThroughOtherFormatsPacked) {
  for (const char* format : {"torch", "native", "dcp", "hdf5"}) {
    const Path packed = format == std::string("hdf5") ? temp_.path() / "p.h5" : out();
    ASSERT_EQ(unishard({"convert", model_, packed, "--to", format, "-q"}).status, 0) << format;
    const Path folder = out();
    const ProcessResult result = unishard({"zero_to_fp32", packed, folder, "-q"});
    if (format == std::string("hdf5")) {  // no config.json beside it says the size of the blocks
      EXPECT_EQ(result.status, 6) << result.err;
      EXPECT_THAT(result.err, HasSubstr("weight_block_size"));
      continue;
    }
    ASSERT_EQ(result.status, 0) << format << ": " << result.err;
    EXPECT_EQ(read_safetensors(folder / "model.safetensors").at(1).bytes, floats({0.5F, 1, 3, -3}))
        << format;
  }
}

TEST_F(QuantizedModels, OfMethodsThatAreNotReadAreRefused) {
  write_safetensors(model_ / "model.safetensors",
                    {{"w.qweight", "I32", {1, 1}, "1234"}, {"w.scales", "F32", {1}, floats({1})}});
  for (const char* verb : {"zero_to_fp32", "convert"}) {
    std::vector<std::string> arguments = {verb, model_, out()};
    if (verb == std::string("convert"))
      arguments.insert(arguments.end(), {"--to", "safetensors", "--dtype", "bf16"});
    const ProcessResult result = unishard(arguments);
    EXPECT_EQ(result.status, 6);
    EXPECT_THAT(result.err, HasSubstr("w.qweight"));
    EXPECT_THAT(result.err, HasSubstr("GPTQ"));
    EXPECT_FALSE(std::filesystem::exists(arguments[2]));
  }
  EXPECT_EQ(unishard({"convert", model_, out(), "--to", "safetensors", "-q"}).status, 0);
}

TEST_F(QuantizedModels, AreNotPartedFromTheirScales) {
  const auto refusal = [&](const char* option, const char* value) {
    const Path folder = out();
    const ProcessResult result =
        unishard({"convert", model_, folder, "--to", "safetensors", option, value});
    EXPECT_EQ(result.status, 2) << option << value;
    EXPECT_FALSE(std::filesystem::exists(folder));
    return result.err;
  };
  EXPECT_THAT(refusal("--only", "w"),
              HasSubstr("w has no value without w_scale_inv, which --only"));
  EXPECT_THAT(refusal("--rename", "^w$=v"), HasSubstr("--rename makes v and w_scale_inv of them"));
  for (const char* rule : {"^=m.", "^norm=n"}) {
    const Path folder = out();
    EXPECT_EQ(unishard({"convert", model_, folder, "--to", "safetensors", "--rename", rule}).status,
              0);
    EXPECT_EQ(unishard({"verify", folder}).status, 0);
  }
  EXPECT_EQ(unishard({"convert", model_, out(), "--to", "safetensors", "--only", "norm"}).status,
            0);
}

// ---- verify ----

class VerifyOfQuantized : public QuantizedModels {
 protected:
  /// Writes a model of these tensors, whose config.json names the method.
  ProcessResult verify(const std::vector<Tensor>& tensors, const Json& quantization) {
    write_safetensors(model_ / "model.safetensors", tensors);
    std::ofstream(model_ / "config.json") << Json{{"quantization_config", quantization}}.dump();
    return unishard({"verify", model_, "--deep"});
  }
  void expect_incomplete(const std::vector<Tensor>& tensors, const Json& quantization,
                         const std::string& words) {
    const ProcessResult result = verify(tensors, quantization);
    EXPECT_EQ(result.status, 1) << words << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("incomplete"));
    EXPECT_THAT(result.out, HasSubstr(words));
  }

  const Tensor weight_{"m.weight", "F8_E4M3", {1, 4}, "\x38\x40\x38\xb8"};
  const Json bits_ = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
};

TEST_F(VerifyOfQuantized, TellsWhatIsNotReadAsNumbers) {
  const Tensor scales{"m.weight_scale_inv", "F32", {1, 2}, floats({0.5F, 3})};
  const ProcessResult result =
      verify({{"m.weight", "BF16", {1, 4}, std::string(8, '\x3f')}, scales}, quantization_);
  EXPECT_EQ(result.status, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("zero_to_fp32 refuses them; the first: m.weight_scale_inv"));
}

TEST_F(VerifyOfQuantized, NamesWeightsWithoutTheirScales) {
  const Tensor scales{"m.weight_scale_inv", "F32", {1, 2}, floats({0.5F, 3})};
  EXPECT_EQ(verify({weight_, scales}, quantization_).status, 0);
  expect_incomplete({weight_}, quantization_, "m.weight [weights]: float8_e4m3fn numbers without");
  expect_incomplete({scales}, quantization_, "scales without their weight");
  expect_incomplete({weight_, {"m.weight_scale_inv", "F32", {3}, floats({1, 2, 3})}}, quantization_,
                    "do not fit");
  expect_incomplete({{"e.w_blocks", "U8", {1, 1, 1, 16}, std::string(16, 'x')}},
                    {{"quant_method", "mxfp4"}}, "e.w_blocks [weights]: blocks of MXFP4");
  expect_incomplete({{"e.w_scales", "U8", {1, 1, 1}, "x"}}, {{"quant_method", "mxfp4"}},
                    "e.w_scales [weights]: scales of MXFP4");
}

TEST_F(VerifyOfQuantized, NamesPartsOfBitsandbytesAlone) {
  const Tensor packed{"m.weight", "U8", {2, 1}, "xy"};
  const std::string state =
      R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [4]})";
  expect_incomplete({packed}, bits_, "m.weight");
  expect_incomplete(
      {packed, {"m.weight.quant_state.bitsandbytes__nf4", "U8", {state.size()}, state}}, bits_,
      "its quant_map is missing");
  expect_incomplete({{"m.weight", "I8", {1, 2}, "xy"}, {"m.weight_format", "U8", {1}, {"\0", 1}}},
                    {{"quant_method", "bitsandbytes"}}, "m.weight");
}

TEST_F(VerifyOfQuantized, SaysNothingOfMethodsThatAreNotRead) {
  const std::vector<Tensor> packed = {{"m.qweight", "I32", {1, 1}, "1234"},
                                      {"m.scales", "F32", {1}, floats({1})}};
  EXPECT_EQ(verify(packed, {{"quant_method", "gptq"}}).status, 0);
  EXPECT_EQ(verify({{"m.weight_packed", "I32", {1, 1}, "1234"},
                    {"m.weight_scale", "F32", {1}, floats({1})}},
                   {{"quant_method", "compressed-tensors"}})
                .status,
            0);
}

TEST_F(VerifyOfQuantized, IsEchoedByACopy) {
  const std::string state =
      R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [4]})";
  verify({{"m.weight", "U8", {2, 1}, "xy"},
          {"m.weight.quant_state.bitsandbytes__nf4", "U8", {state.size()}, state}},
         bits_);
  const ProcessResult result = unishard({"convert", model_, out(), "--to", "torch"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("m.weight [weights]: its quant_map is missing: it is copied as "
                                    "it is, and cannot be dequantized"));
}

/// The base model of an adapter's run, without one of its descriptions.
TEST_F(VerifyOfQuantized, IsAnErrorForFrozenWeightsThatStayPacked) {
  SKIP_WITHOUT_FIXTURES();
  const Path run = temp_.path() / "run";
  const std::string fixture = (fixtures() / "public/qlora_deepspeed/input").string();
  ASSERT_EQ(unishard({"convert", fixture, run, "--to", "native", "--only", "base.weight", "--only",
                      "base.weight.q*", "--only", "lora*", "--allow-missing", "-q"})
                .status,
            0);
  const Path file = temp_.path() / "model.safetensors";
  const ProcessResult refused = unishard({"zero_to_fp32", run, file});
  EXPECT_EQ(refused.status, 6);
  EXPECT_THAT(refused.err, HasSubstr("base.weight [weights]: its absmax is missing"));
  const ProcessResult allowed = unishard({"zero_to_fp32", run, file, "--allow-missing"});
  EXPECT_EQ(allowed.status, 0);
  EXPECT_THAT(allowed.err, HasSubstr("it is written as it is, and cannot be dequantized"));
  EXPECT_THAT(allowed.err, Not(HasSubstr("with their scales beside them")));
  const ProcessResult others =
      unishard({"zero_to_fp32", run, out(), "--exclude_frozen_parameters"});
  EXPECT_EQ(others.status, 0) << others.err;
}

// ---- tensors that torchao describes ----

/// Two layers, one of which has a bias, norms and an output layer, as torchao writes them.
class DescribedByTorchao : public QuantizedModels {
 protected:
  static Json metadata() {
    const std::string weight =
        R"({"_type": "Int8Tensor", "_data": {"block_size": [1, 2], "dtype": )"
        R"({"_type": "torch.dtype", "_data": "float32"}}, "_tensor_data_names": ["qdata", "scale"]})";
    const std::string plain = R"({"_type": "Tensor"})";
    return {{"format", "pt"},
            {"tensor_names", R"(["0.weight", "0.bias", "1.weight", "norm.0.weight",)"
                             R"( "norm.1.weight", "lm_head.weight", "m.final_norm.weight"])"},
            {"0.weight", weight},
            {"0.bias", plain},
            {"1.weight", weight},
            {"norm.0.weight", plain},
            {"norm.1.weight", plain},
            {"lm_head.weight", plain},
            {"m.final_norm.weight", plain}};
  }
  /// Writes the tensors whose names do not begin with `gone`, and never that of the output layer.
  void write_without(const std::string& gone, const char* file = "model.safetensors") {
    std::filesystem::remove_all(model_);
    std::filesystem::create_directory(model_);
    std::vector<Tensor> tensors;
    for (const char* layer : {"0", "1"}) {
      const std::string name = layer;
      tensors.push_back({name + "._weight_qdata", "I8", {1, 2}, "\x02\x03"});
      tensors.push_back({name + "._weight_scale", "F32", {1, 1}, floats({0.5F})});
      tensors.push_back({"norm." + name + ".weight", "F32", {1}, floats({1})});
    }
    tensors.push_back({"0.bias", "F32", {1}, floats({1})});
    tensors.push_back({"m.final_norm.weight", "F32", {1}, floats({1})});
    std::erase_if(tensors, [&](const Tensor& tensor) {
      return !gone.empty() && tensor.name.starts_with(gone);
    });
    write_safetensors(model_ / file, tensors, metadata());
  }
};

TEST_F(DescribedByTorchao, AreMissedByNameWhereTheFileLacksThem) {
  const std::map<std::string, std::string> cases = {{"0._weight", "0.weight"},
                                                    {"0.bias", "0.bias"},
                                                    {"norm.0.weight", "norm.0.weight"},
                                                    {"m.final_norm.weight", "m.final_norm.weight"}};
  for (const auto& [gone, name] : cases) {
    write_without(gone);
    const Path folder = out();
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"zero_to_fp32", model_, folder},
          {"convert", model_, folder, "--to", "safetensors", "--dtype", "bf16"}}) {
      const ProcessResult refused = unishard(command);
      EXPECT_EQ(refused.status, 6) << gone << refused.err;
      EXPECT_THAT(refused.err, HasSubstr("weight \"" + name + "\""));
      EXPECT_FALSE(std::filesystem::exists(folder));
    }
    const ProcessResult verified = unishard({"verify", model_});
    EXPECT_EQ(verified.status, 1) << gone;
    EXPECT_THAT(verified.out, HasSubstr("incomplete"));
    EXPECT_THAT(verified.out, HasSubstr(name));
    EXPECT_EQ(unishard({"zero_to_fp32", model_, folder, "--allow-missing", "-q"}).status, 0);
  }
}

TEST_F(DescribedByTorchao, KeepTheirDescriptionsUnderNewNames) {
  write_without("");
  const Path prefixed = out(), restored = out(), model = out();
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"convert", model_, prefixed, "--to", "safetensors", "--rename",
                                 "^=p."},
        {"convert", prefixed, restored, "--to", "safetensors", "--rename", "^p\\.="},
        {"convert", model_, model, "--to", "safetensors", "--weights-only"}}) {
    const ProcessResult result = unishard(command);
    ASSERT_EQ(result.status, 0) << result.err;
    const ProcessResult verified = unishard({"verify", command[2]});
    EXPECT_EQ(verified.status, 0) << verified.out;
  }
  for (const Path& folder : {restored, model}) {
    const Path numbers = out();
    ASSERT_EQ(unishard({"zero_to_fp32", folder, numbers, "-q"}).status, 0);
    EXPECT_EQ(unishard({"diff", model_, folder, "-q"}).status, 0);
  }
}

TEST_F(DescribedByTorchao, MayBeLeftOutByTheProgramThatWroteThem) {
  write_without("");  // the output layer is tied
  const ProcessResult whole = unishard({"zero_to_fp32", model_, out()});
  EXPECT_EQ(whole.status, 0) << whole.err;
  EXPECT_EQ(unishard({"verify", model_}).status, 0);
  write_safetensors(model_ / "model.safetensors", {{"a.lora_A.weight", "F32", {1}, floats({1})}},
                    metadata());  // transformers describes the base model of an adapter
  const ProcessResult adapter = unishard({"verify", model_});
  EXPECT_EQ(adapter.status, 0) << adapter.out;
  write_without("0.", "model-00001-of-00002.safetensors");
  const ProcessResult shard = unishard({"verify", model_ / "model-00001-of-00002.safetensors"});
  EXPECT_EQ(shard.status, 0) << shard.out;
}

TEST_F(DescribedByTorchao, AreForgottenWhereTheyWereNotAskedFor) {
  write_without("");
  const Path part = temp_.path() / "part.safetensors";
  const ProcessResult made = unishard({"convert", model_, part, "--only", "0.*"});
  ASSERT_EQ(made.status, 0) << made.err;
  const ProcessResult verified = unishard({"verify", part});
  EXPECT_EQ(verified.status, 0) << verified.out;
  const Path folder = out();
  const ProcessResult numbers = unishard({"zero_to_fp32", part, folder});
  ASSERT_EQ(numbers.status, 0) << numbers.err;
  EXPECT_EQ(read_safetensors(folder / "model.safetensors"),
            (std::vector<Tensor>{{"0.bias", "F32", {1}, floats({1})},
                                 {"0.weight", "F32", {1, 2}, floats({1, 1.5F})}}));
}

}  // namespace
}  // namespace unishard::test
