// Files as llama.cpp and other writers make them, byte by byte; tests/interop/peers/gguf_accepts.py
// asks the gguf package.
#include "unishard/converters/registry.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "formats/gguf/types.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"
#include "write_example_file.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace unishard::converters {
namespace {

using gguf::ValueType;
using test::error_of;
using test::Fails;
using test::read_file;
using test::TempDir;
using test::write_file;
using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
std::string number(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string text(std::string_view value) {
  return number<std::uint64_t>(value.size()) + std::string(value);
}
std::string key(std::string_view name, ValueType type, const std::string& value) {
  return text(name) + number(static_cast<std::uint32_t>(type)) + value;
}
std::string array(ValueType type, std::uint64_t count, const std::string& values) {
  return number(static_cast<std::uint32_t>(type)) + number(count) + values;
}

struct Tensor {
  std::string name;
  std::vector<std::uint64_t> sizes;  // as in the file: the fastest first
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
};

struct File {
  std::vector<std::string> keys;
  std::vector<Tensor> tensors;
  std::string data;
  std::uint32_t version = 3;
  std::size_t alignment = 32;

  std::string bytes() const {
    std::string out = "GGUF" + number(version) + number<std::uint64_t>(tensors.size()) +
                      number<std::uint64_t>(keys.size());
    for (const std::string& each : keys) out += each;
    for (const Tensor& tensor : tensors) {
      out += text(tensor.name) + number(static_cast<std::uint32_t>(tensor.sizes.size()));
      for (const std::uint64_t size : tensor.sizes) out += number(size);
      out += number(tensor.type) + number(tensor.offset);
    }
    out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data;
  }
};

class Gguf : public testing::Test {
 protected:
  std::unique_ptr<Source> open(const File& file) { return open(file.bytes()); }
  std::unique_ptr<Source> open(const std::string& bytes) {
    write_file(temp_.path() / "x.gguf", bytes);
    return open_source(posix_storage(), temp_.path() / "x.gguf");
  }
  Error refusal(const File& file) {
    return error_of([&] { open(file); });
  }
  const TempDir temp_;
};

File small_file() {
  File file;
  file.keys = {
      key("general.architecture", ValueType::String, text("llama")),
      key("llama.block_count", ValueType::UInt32, number<std::uint32_t>(2)),
      key("big", ValueType::UInt64, number(std::numeric_limits<std::uint64_t>::max())),
      key("eps", ValueType::Float32, number(1e-5f)),
      key("flag", ValueType::Bool, number<std::uint8_t>(1)),
      key("words", ValueType::Array, array(ValueType::String, 2, text("a") + text("\u00e4"))),
      key("scores", ValueType::Array, array(ValueType::Float32, 2, number(1.5f) + number(-2.0f))),
      key("none", ValueType::Array, array(ValueType::Int8, 0, ""))};
  file.tensors = {{"a", {3, 2}, 0, 0}, {"b", {5}, 24, 32}};
  file.data = std::string(24, 'x') + std::string(8, '\0') + "12345";
  return file;
}

TEST_F(Gguf, SizesAreReversedAndMetadataAreKeptWithTheirTypes) {
  for (const std::uint32_t version : {2u, 3u}) {
    File file = small_file();
    file.version = version;
    const auto source = open(file);
    ASSERT_EQ(source->catalog().tensors.size(), 2u);
    EXPECT_EQ(source->catalog().tensors[0].shape, (Shape{2, 3}));
    EXPECT_EQ(source->catalog().tensors[1].dtype, DType::Int8);
    EXPECT_EQ(read_all(*source, 1).at(4), std::byte{'5'});
    const Json& metadata = source->catalog().producer.at("gguf");
    EXPECT_EQ(metadata.at("general.architecture"), Json::array({"string", "llama"}));
    EXPECT_EQ(metadata.at("big"),
              Json::array({"uint64", std::numeric_limits<std::uint64_t>::max()}));
    EXPECT_EQ(metadata.at("words"), Json::array({"string", Json::array({"a", "\u00e4"})}));
    EXPECT_EQ(notes_of(*source), std::vector<std::string>{});
  }
}

TEST_F(Gguf, MetadataFindTheirWayThroughANativeCheckpointAndBack) {
  Json before = open(small_file())->catalog().producer.at("gguf");
  Catalog catalog = open(small_file())->catalog();
  const auto again = write_example_file("gguf", temp_.path() / "again.gguf", catalog);
  before["general.file_type"] = Json::array({"uint32", 0});
  EXPECT_EQ(again->catalog().producer.at("gguf"), before);
  EXPECT_EQ(again->catalog().producer.size(), 1u) << "no embedded catalog is needed";
  const std::string bytes = read_file(temp_.path() / "again.gguf");
  EXPECT_EQ(bytes.find("unishard"), std::string::npos);
}

TEST_F(Gguf, WhatTheMetadataSayWrongIsNamedAndLeftOut) {
  Catalog catalog = catalog_of({weight("w", DType::Float32, {2})});
  catalog.producer = {{"gguf",
                       {{"good", {"int8", -3}},
                        {"bad.range", {"int8", 300}},
                        {"bad.type", {"int128", 3}},
                        {"bad.form", 3}}}};
  const auto sink = make_sink(
      posix_storage(), {.format = "gguf", .path = temp_.path() / "y.gguf", .tag = {}}, catalog);
  EXPECT_THAT(sink->notes(),
              ElementsAre(HasSubstr("bad.range"), HasSubstr("bad.type"), HasSubstr("bad.form")));
}

TEST_F(Gguf, TheArchitectureComesFromTheModelsConfiguration) {
  const Catalog catalog = catalog_of({weight("w", DType::Float32, {2})});
  const auto architecture = [&](const std::string& config) {
    const Path path = temp_.path() / fmt::format("{}.gguf", config.size());
    const auto sink = make_sink(
        posix_storage(),
        {.format = "gguf", .path = path, .tag = {}, .side_files = {{"config.json", config}}},
        catalog);
    fill_with_example(*sink, catalog);
    sink->commit();
    return open_source(posix_storage(), path)
        ->catalog()
        .producer["gguf"]["general.architecture"][1];
  };
  EXPECT_EQ(architecture(R"({"model_type": "qwen2"})"), "qwen2");
  EXPECT_EQ(architecture("{"), "unknown");
}

TEST_F(Gguf, QuantizedTensorsAreRefusedByNameAndType) {
  File file = small_file();
  file.tensors[1].type = 12;
  EXPECT_THAT(refusal(file), Fails(ErrorCode::Unsupported, "1 of 2", "llama-quantize"));
  EXPECT_THAT(refusal(file).what(), HasSubstr("\"b\" (Q4_K)"));
  file.tensors[1].type = 999;
  EXPECT_THAT(refusal(file).what(), HasSubstr("type 999"));
}

TEST_F(Gguf, OtherVersionsAndByteOrdersAreRefused) {
  File file = small_file();
  file.version = 1;
  EXPECT_THAT(refusal(file), Fails(ErrorCode::Unsupported, "version 1"));
  file.version = 3u << 24;
  EXPECT_THAT(refusal(file), Fails(ErrorCode::Unsupported, "big-endian"));
}

TEST_F(Gguf, TypesThatGgufLacksAreRefusedWithTheOptionThatHelps) {
  const auto refused = [&](DType dtype, Shape shape) {
    return error_of([&] {
      make_sink(posix_storage(), {.format = "gguf", .path = temp_.path() / "z.gguf", .tag = {}},
                catalog_of({weight("w", dtype, std::move(shape))}));
    });
  };
  EXPECT_THAT(refused(DType::Float8E4M3, {2}), Fails(ErrorCode::Unsupported, "\"w\"", "--dtype"));
  EXPECT_THAT(refused(DType::Bool, {2}), Fails(ErrorCode::Unsupported, "bool", "--only"));
  EXPECT_THAT(refused(DType::Float32, {1, 1, 1, 1, 1}),
              Fails(ErrorCode::Unsupported, "5 dimensions"));
}

TEST_F(Gguf, AnotherAlignmentIsFollowed) {
  File file = small_file();
  file.keys.push_back(key("general.alignment", ValueType::UInt32, number<std::uint32_t>(8)));
  file.alignment = 8;
  file.tensors[1].offset = 24;
  file.data = std::string(24, 'x') + "12345";
  EXPECT_EQ(read_all(*open(file), 1).at(0), std::byte{'1'});
  for (const std::uint32_t odd : {0u, 12u}) {
    file.keys.back() = key("general.alignment", ValueType::UInt32, number(odd));
    EXPECT_THAT(refusal(file), Fails(ErrorCode::Corrupt, "power of 2"));
  }
  file.keys.back() = key("general.alignment", ValueType::String, text("32"));
  EXPECT_THAT(refusal(file), Fails(ErrorCode::Corrupt, "is string and no single uint32"));
  file.keys.back() = key("general.alignment", ValueType::Array,
                         array(ValueType::UInt32, 1, number<std::uint32_t>(32)));
  EXPECT_THAT(refusal(file), Fails(ErrorCode::Corrupt, "is an array and no single uint32"));
}

TEST_F(Gguf, ATypeThatNobodyKnowsIsNotCalledQuantized) {
  File file = small_file();
  file.tensors[0].type = 999;
  EXPECT_THAT(refusal(file), Fails(ErrorCode::Unsupported, "type 999, which this version"));
}

TEST_F(Gguf, AnEmbeddedCatalogThatIsNoneIsDamageInOurWords) {
  File file = small_file();
  file.keys.push_back(key("unishard.catalog", ValueType::String, text("{}")));
  EXPECT_THAT(refusal(file),
              Fails(ErrorCode::Corrupt, testing::AllOf(HasSubstr("a member is missing"),
                                                       testing::Not(HasSubstr("json.exception")))));
}

TEST_F(Gguf, WhatJsonCannotHoldIsLeftOutWithANote) {
  File file = small_file();
  file.keys.push_back(key("raw", ValueType::String, text("\xff\xfe")));
  file.keys.push_back(
      key("nan", ValueType::Float32, number(std::numeric_limits<float>::quiet_NaN())));
  const auto source = open(file);
  EXPECT_THAT(notes_of(*source), ElementsAre(HasSubstr("\"raw\""), HasSubstr("\"nan\"")));
  EXPECT_FALSE(source->catalog().producer["gguf"].contains("raw"));
}

TEST_F(Gguf, HostileHeadersAreDamage) {
  const auto damaged = [&](auto&& change) {
    File file = small_file();
    change(file);
    EXPECT_THAT(refusal(file), Fails(ErrorCode::Corrupt, "x.gguf"));
  };
  damaged([](File& file) { file.tensors[1].offset = 0; });
  damaged([](File& file) { file.tensors[1].offset = 64; });
  damaged([](File& file) { file.tensors[1].name = "a"; });
  damaged([](File& file) { file.tensors[1].sizes = {std::uint64_t{1} << 63, 4}; });
  damaged([](File& file) { file.tensors[1].sizes = {6}; });
  damaged([](File& file) { file.tensors[1].sizes.assign(65, 1); });
  damaged([](File& file) { file.keys.push_back(file.keys.front()); });
  damaged([](File& file) { file.keys[4] = key("flag", ValueType::Bool, number<std::uint8_t>(2)); });
  damaged([](File& file) {
    file.keys[5] = key("words", ValueType::Array, array(ValueType::String, 1ull << 60, ""));
  });
  damaged([](File& file) {
    file.keys[5] = key("nested", ValueType::Array, array(ValueType::Array, 1, ""));
  });
  damaged([](File& file) {
    file.keys[5] = text("long") + number<std::uint32_t>(8) + number<std::uint64_t>(1ull << 60);
  });
  damaged([](File& file) { file.keys[5] = text("odd") + number<std::uint32_t>(13); });
  std::string many = small_file().bytes();
  many.replace(8, 8, number<std::uint64_t>(1ull << 50));  // tensors
  EXPECT_THAT(error_of([&] { open(many); }), Fails(ErrorCode::Corrupt, "too short"));
}

TEST_F(Gguf, WhatIsBehindTheLastTensorIsNoted) {
  EXPECT_THAT(notes_of(*open(small_file().bytes() + std::string(64, 'x'))),
              ElementsAre(HasSubstr("behind the last tensor")));
}

}  // namespace
}  // namespace unishard::converters
