#include "unishard/format/manifest.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace unishard {
namespace {

Manifest example() {
  Manifest manifest;
  manifest.save_id = "00112233445566778899aabbccddeeff";
  manifest.tag = "global_step7";
  manifest.catalog = test::example_catalog({.world_size = 2, .bf16 = true});
  std::uint64_t number = 1;
  for (TensorInfo& tensor : manifest.catalog.tensors) tensor.crc64 = number++;
  manifest.catalog.tensors[0].stats = Stats{2048, 1, 0, -1.5, 0.1, 3.25};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    manifest.shards.push_back({shard_file_name(rank, 2),
                               rank,
                               12288,
                               7,
                               4200,
                               0,
                               4300,
                               0,
                               {{"fp32", DType::Float32, 8192, 5, 5000}}});
  }
  return manifest;
}

// A manifest text with one member replaced and the checksum made right again.
std::string edited(const std::function<void(Json&)>& edit) {
  const std::string text = encode_manifest(example());
  Json json = Json::parse(text);
  json.erase("crc64");
  edit(json);
  std::string body = json.dump().substr(1);
  return "{\"crc64\":\"" + hex64(crc64(body)) + "\",\n" + body;
}

TEST(Manifest, SurvivesEncoding) {
  const Manifest manifest = example();
  const std::string text = encode_manifest(manifest);
  const Manifest back = decode_manifest(text, "m");
  EXPECT_EQ(encode_manifest(back), text);
  EXPECT_EQ(identity(back.catalog), identity(manifest.catalog));
  EXPECT_EQ(back.catalog.tensors[0].stats, manifest.catalog.tensors[0].stats);
  EXPECT_EQ(back.catalog.client_state, manifest.catalog.client_state);
  EXPECT_EQ(back.shards, manifest.shards);
}

TEST(Manifest, WritesInfiniteSumsAsTheLargestNumber) {
  Manifest manifest = example();
  manifest.catalog.tensors[0].stats->sum_squares = std::numeric_limits<double>::infinity();
  EXPECT_EQ(decode_manifest(encode_manifest(manifest), "m").catalog.tensors[0].stats->sum_squares,
            std::numeric_limits<double>::max());
}

struct Defect {
  const char* name;
  std::function<void(Json&)> damage;
  const char* words;
  ErrorCode code = ErrorCode::Corrupt;
};
void PrintTo(const Defect& defect, std::ostream* out) { *out << defect.name; }
class ManifestDefect : public testing::TestWithParam<Defect> {};

TEST_P(ManifestDefect, IsRefusedNamingTheField) {
  const std::string text = edited(GetParam().damage);
  EXPECT_THAT(test::error_of([&] { decode_manifest(text, "dir/manifest.json"); }),
              test::Fails(GetParam().code, {GetParam().words, "dir/manifest.json"}));
}

INSTANTIATE_TEST_SUITE_P(
    All, ManifestDefect,
    testing::Values(
        Defect{"NewerVersion", [](Json& j) { j["version"] = 2; }, "version: 2",
               ErrorCode::Unsupported},
        Defect{"VersionZero", [](Json& j) { j["version"] = 0; }, "version: 0",
               ErrorCode::Unsupported},
        Defect{"UnknownFeature", [](Json& j) { j["required_features"] = {"teleport"}; },
               "\"teleport\" is not known", ErrorCode::Unsupported},
        Defect{"OtherFormat", [](Json& j) { j["format"] = "gguf"; }, "format"},
        Defect{"BadSaveId", [](Json& j) { j["save_id"] = "x"; }, "save_id"},
        Defect{"NoTensors", [](Json& j) { j.erase("tensors"); }, "tensors: is missing"},
        Defect{"TensorsObject", [](Json& j) { j["tensors"] = Json::object(); }, "must be an array"},
        Defect{"UnknownDtype", [](Json& j) { j["tensors"][3]["dtype"] = "float7"; },
               "tensors[3].dtype"},
        Defect{"NegativeDimension", [](Json& j) { j["tensors"][0]["shape"] = {-1}; },
               "tensors[0].shape"},
        Defect{"FloatDimension", [](Json& j) { j["tensors"][0]["shape"] = {1.5}; },
               "tensors[0].shape"},
        Defect{"HugeShape",
               [](Json& j) {
                 j["tensors"][0]["shape"] = {1u << 31, 1u << 31, 1u << 31};
               },
               "manifest.json"},
        Defect{"BoxesNotNamed",
               [](Json& j) {
                 j["shards"][1]["boxes_offset"] = 4400;
                 j["shards"][1]["boxes_bytes"] = 24;
               },
               "required_features"},
        Defect{"ZstdNotNamed",
               [](Json& j) {
                 Json& set = j["shards"][0]["data_sets"][0];
                 set.erase("offset");
                 set["filter"] = "zstd";
               },
               "required_features"},
        Defect{"MoreRowsThanTheFileHolds",
               [](Json& j) { j["shards"][0]["index_rows"] = 12288 / 96 + 1; },
               "shards[0].index_rows"},
        Defect{"BadCrc", [](Json& j) { j["tensors"][0]["crc64"] = "XYZ"; }, "tensors[0].crc64"},
        Defect{"StatsBeyondElements", [](Json& j) { j["tensors"][0]["stats"]["nan"] = 99999; },
               "above the limit"},
        Defect{"DuplicateTensor", [](Json& j) { j["tensors"].push_back(j["tensors"][0]); },
               "occurs twice"},
        Defect{"WorldSizeMismatch", [](Json& j) { j["world_size"] = 3; },
               "2 shards for world size 3"},
        Defect{"StageFour", [](Json& j) { j["stage"] = 4; }, "stage"},
        Defect{"SwappedRanks", [](Json& j) { std::swap(j["shards"][0], j["shards"][1]); },
               "shards[0].rank"},
        Defect{"SameFileTwice", [](Json& j) { j["shards"][1]["file"] = j["shards"][0]["file"]; },
               "named twice"},
        Defect{"PathEscape", [](Json& j) { j["shards"][0]["file"] = "../../etc/passwd"; },
               "not a plain file name"},
        Defect{"AbsolutePath", [](Json& j) { j["shards"][0]["file"] = "/etc/passwd"; },
               "not a plain file name"},
        Defect{"DataSetBeyondFile",
               [](Json& j) { j["shards"][0]["data_sets"][0]["elements"] = 3000; },
               "beyond the file"},
        Defect{"DataSetUnaligned", [](Json& j) { j["shards"][0]["data_sets"][0]["offset"] = 4097; },
               "multiple of 4096"},
        Defect{"ChunkBytesOdd", [](Json& j) { j["chunk_bytes"] = 5000; }, "chunk_bytes"},
        Defect{"WrongIdentity", [](Json& j) { j["identity"] = "0000000000000000"; }, "identity"}),
    [](const auto& row) { return row.param.name; });

TEST(Manifest, RefusesEveryFlippedByte) {
  const std::string text = encode_manifest(example());
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const int bit : {1, 32}) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ bit);
      EXPECT_THROW(decode_manifest(damaged, "m"), Error) << "byte " << i;
    }
  }
}

TEST(Manifest, RefusesEveryTruncation) {
  const std::string text = encode_manifest(example());
  for (std::size_t i = 0; i < text.size(); i += 7)
    EXPECT_THROW(decode_manifest(text.substr(0, i), "m"), Error) << i;
}

TEST(Tag, RefusesWhatIsNoFolderName) {
  for (const char* tag : {"", ".hidden", "a/b", "..", "latest", "manifest.json", "a\nb",
                          "t.partial-00112233445566778899aabbccddeeff"}) {
    EXPECT_THROW(validate_tag(tag), Error) << tag;
  }
  EXPECT_THROW(validate_tag(std::string(201, 'x')), Error);
  for (const char* tag : {"global_step10", "step [1]", "é", "t.partial-1"})
    EXPECT_NO_THROW(validate_tag(tag)) << tag;
}

}  // namespace
}  // namespace unishard
