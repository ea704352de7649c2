// One row per way a checkpoint on disk can be wrong. Each is refused when it is opened, or when the
// damaged bytes are read, with a message that names the file and the reason.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>

namespace unishard {
namespace {

namespace fs = std::filesystem;
using test::edit_manifest;
using test::flip_bits;
using test::read_file;
using test::write_file;

const test::CheckpointSpec kSpec{.world_size = 3, .stage = 2, .bf16 = true};
constexpr const char* kShard0 = "shard-00000-of-00003.h5";
constexpr const char* kShard1 = "shard-00001-of-00003.h5";

Manifest manifest_of(const fs::path& folder) {
  return decode_manifest(read_file(folder / "manifest.json"), "manifest");
}

// Changes bytes of a shard's tables and makes the manifest vouch for them.
void forge_tables(const fs::path& folder, std::size_t shard,
                  const std::function<void(std::string&, const ShardEntry&)>& edit) {
  edit_manifest(folder, [&](Manifest& manifest) {
    ShardEntry& entry = manifest.shards[shard];
    std::string text = read_file(folder / entry.file);
    edit(text, entry);
    write_file(folder / entry.file, text);
    std::string metadata;
    std::uint64_t at = 0;
    for (const DataSetEntry& item :
         entry.data_sets) {  // by name; all test data sets are also in offset order
      metadata += text.substr(at, item.offset - at);
      at = item.offset + item.padded_bytes();
    }
    entry.metadata_crc64 = crc64(metadata + text.substr(at));
  });
}

template <class T>
void put(std::string& text, std::uint64_t offset, T value) {
  text.replace(offset, sizeof(T), reinterpret_cast<const char*>(&value), sizeof(T));
}

struct Damage {
  const char* name;
  std::function<void(const fs::path& folder)> apply;
  std::vector<const char*> words;
  ErrorCode code = ErrorCode::Corrupt;
};
void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

void open_and_read_all(const fs::path& folder) {
  const CheckpointReader reader(posix_storage(), folder);
  for (std::size_t i = 0; i < reader.catalog().tensors.size(); ++i) {
    std::vector<std::byte> bytes(reader.catalog().tensors[i].bytes());
    reader.read(i, {0, reader.catalog().tensors[i].elements()}, bytes);
  }
}

class Damaged : public testing::TestWithParam<Damage> {};

TEST_P(Damaged, IsRefusedWithFileAndReason) {
  const test::TempDir dir;
  const fs::path folder = test::write_example(dir.path(), kSpec);
  ASSERT_NO_THROW(open_and_read_all(folder));
  GetParam().apply(folder);
  EXPECT_THAT(test::error_of([&] { open_and_read_all(folder); }),
              test::Fails(GetParam().code, GetParam().words));
}

const Damage kDamages[] = {
    {"ShardTruncated",
     [](const fs::path& f) { fs::resize_file(f / kShard1, fs::file_size(f / kShard1) - 1); },
     {kShard1, "truncated"}},
    {"ShardLengthened",
     [](const fs::path& f) { fs::resize_file(f / kShard1, fs::file_size(f / kShard1) + 1); },
     {kShard1, "too long"}},
    {"ShardEmpty",
     [](const fs::path& f) { fs::resize_file(f / kShard1, 0); },
     {kShard1, "truncated: the file has 0 bytes"}},
    {"ShardMissing",
     [](const fs::path& f) { fs::remove(f / kShard1); },
     {kShard1, "rank 1 is missing"}},
    {"ShardIsAFolder",
     [](const fs::path& f) { fs::remove(f / kShard1), fs::create_directory(f / kShard1); },
     {kShard1, "not a regular file"}},
    {"ShardsSwapped",
     [](const fs::path& f) {
       fs::rename(f / kShard0, f / "x"), fs::rename(f / kShard1, f / kShard0),
           fs::rename(f / "x", f / kShard1);
     },
     {kShard0}},
    {"ShardRenamed",
     [](const fs::path& f) { fs::rename(f / kShard1, f / "other.h5"); },
     {kShard1, "missing"}},
    {"ShardExtra",
     [](const fs::path& f) { fs::copy_file(f / kShard1, f / "shard-00003-of-00003.h5"); },
     {"shard-00003-of-00003.h5", "not in the manifest"}},
    {"ShardOfAnotherSave",
     [](const fs::path& f) {
       const test::TempDir other;
       fs::copy_file(test::write_example(other.path(), kSpec) / kShard1, f / kShard1,
                     fs::copy_options::overwrite_existing);
     },
     {kShard1, "belongs to another save"}},
    {"UserBlockFlipped",
     [](const fs::path& f) { flip_bits(f / kShard0, 100); },
     {kShard0, "header"}},
    {"MagicFlipped",
     [](const fs::path& f) { flip_bits(f / kShard0, 0); },
     {kShard0, "mark of a UniShard shard"}},
    {"Hdf5MetadataFlipped",
     [](const fs::path& f) { flip_bits(f / kShard0, 4096 + 30); },
     {kShard0, "tables"}},
    {"IndexFlipped",
     [](const fs::path& f) { flip_bits(f / kShard0, manifest_of(f).shards[0].index_offset + 40); },
     {kShard0, "tables"}},
    {"PayloadFlipped",
     [](const fs::path& f) {
       flip_bits(f / kShard0, manifest_of(f).shards[0].data_sets[1].offset + 5);
     },
     {kShard0, "do not match their checksum", "elements"}},
    {"PaddingFlipped",
     [](const fs::path& f) {
       const DataSetEntry set = manifest_of(f).shards[0].data_sets[0];
       flip_bits(f / kShard0, set.offset + set.padded_bytes() - 1);
     },
     {kShard0, "do not match their checksum"}},
    {"ManifestMissing",
     [](const fs::path& f) { fs::remove(f / "manifest.json"); },
     {"not a complete checkpoint"},
     ErrorCode::NotFound},
    {"ManifestEmpty",
     [](const fs::path& f) { fs::resize_file(f / "manifest.json", 0); },
     {"manifest.json", "first line"}},
    {"ManifestTruncated",
     [](const fs::path& f) { fs::resize_file(f / "manifest.json", 500); },
     {"manifest.json", "checksum"}},
    {"ManifestIsAFolder",
     [](const fs::path& f) {
       fs::remove(f / "manifest.json"), fs::create_directory(f / "manifest.json");
     },
     {"manifest.json"}},
    {"ManifestOfAnotherSave",
     [](const fs::path& f) {
       const test::TempDir other;
       fs::copy_file(test::write_example(other.path(), kSpec) / "manifest.json",
                     f / "manifest.json", fs::copy_options::overwrite_existing);
     },
     {kShard0, "belongs to another save"}},
    {"NewerShardVersion",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& text, const ShardEntry&) {
         put<std::uint32_t>(text, 8, 2);
         put(text, 4088, crc64(std::string_view(text).substr(0, 4088)));
       });
     },
     {kShard0, "version 2"},
     ErrorCode::Unsupported},
    {"UnknownShardFeature",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& text, const ShardEntry&) {
         put<std::uint32_t>(text, 12, 8);
         put(text, 4088, crc64(std::string_view(text).substr(0, 4088)));
       });
     },
     {kShard0, "features 0x8"},
     ErrorCode::Unsupported},
    {"RowOfUnknownTensor",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& t, const ShardEntry& e) {
         put<std::uint32_t>(t, e.index_offset, 10'000);
       });
     },
     {kShard0, "index row 0", "tensor number 10000"}},
    {"RowBeyondTensor",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& t, const ShardEntry& e) {
         put<std::uint64_t>(t, e.index_offset + 16, 1u << 30);
       });
     },
     {kShard0, "index row 0"}},
    {"RowReversed",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& t, const ShardEntry& e) {
         put<std::uint64_t>(t, e.index_offset + 8, 1u << 30);
       });
     },
     {kShard0, "index row 0"}},
    {"RowOfUnknownDataSet",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& t, const ShardEntry& e) {
         put<std::uint32_t>(t, e.index_offset + 4, 77);
       });
     },
     {kShard0, "data set number 77"}},
    {"RowOffsetOverflow",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& t, const ShardEntry& e) {
         put<std::uint64_t>(t, e.index_offset + 24, ~std::uint64_t{0});
       });
     },
     {"out of range"}},
    {"RowsOverlap",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& t, const ShardEntry& e) {
         put<std::uint64_t>(t, e.index_offset + 24, 5);
       });
     },
     {kShard0}},
    {"RowNameBeyondTable",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& t, const ShardEntry& e) {
         put<std::uint64_t>(t, e.index_offset + 40, 1u << 30);
       });
     },
     {kShard0, "name ends beyond"}},
    {"RowNameDiffers",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& t, const ShardEntry& e) { t[e.names_offset] = 'X'; });
     },
     {kShard0, "the shard calls it"}},
    {"NameTableTooLong",
     [](const fs::path& f) {
       edit_manifest(f, [](Manifest& m) { m.shards[0].names_bytes += 16; });
     },
     {kShard0, "name table", "272"}},
    {"NameTableTooShort",
     [](const fs::path& f) { edit_manifest(f, [](Manifest& m) { --m.shards[0].names_bytes; }); },
     {kShard0, "name ends beyond"}},
    {"NameTableWithAHole",
     [](const fs::path& f) {
       // The table begins earlier, so that every name moves on by the bytes that no row names.
       forge_tables(f, 0, [](std::string& t, const ShardEntry& e) {
         for (std::uint64_t row = 0; row < e.index_rows; ++row) {
           std::uint64_t at = 0;
           std::memcpy(&at, t.data() + e.index_offset + row * 96 + 40, sizeof(at));
           put<std::uint64_t>(t, e.index_offset + row * 96 + 40, at + 16);
         }
       });
       edit_manifest(f, [](Manifest& m) {
         m.shards[0].names_offset -= 16;
         m.shards[0].names_bytes += 16;
       });
     },
     {kShard0, "index row 0", "hole"}},
    {"RowDigestDiffers",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& t, const ShardEntry& e) {
         put<std::uint64_t>(t, e.index_offset + 32, 1);
       });
     },
     {"do not combine"}},
    {"TooManyNans",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& t, const ShardEntry& e) {
         put<std::uint64_t>(t, e.index_offset + 56, ~std::uint64_t{0});
       });
     },
     {"more NaN and Inf"}},
    {"ChunkElsewhere",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& t, const ShardEntry& e) {
         put<std::uint64_t>(t, e.data_sets[0].chunks_offset, 0);
       });
     },
     {kShard0, "chunk 0"}},
    {"ChunkFilterUnknown",
     [](const fs::path& f) {
       forge_tables(f, 0, [](std::string& t, const ShardEntry& e) {
         put<std::uint32_t>(t, e.data_sets[0].chunks_offset + 12, 1);
       });
     },
     {kShard0, "chunk 0"}},
    {"TableBeyondFile",
     [](const fs::path& f) {
       edit_manifest(f, [](Manifest& m) { m.shards[0].index_offset = m.shards[0].bytes - 8; });
     },
     {kShard0, "ends beyond the file"}},
    {"RowsBeyondAnyMemory",
     [](const fs::path& f) {
       edit_manifest(f, [](Manifest& m) { m.shards[0].index_rows = 99'999'999; });
     },
     {"shards[0].index_rows"}},
    {"DataSetsOverlap",
     [](const fs::path& f) {
       edit_manifest(f, [](Manifest& m) {
         m.shards[0].data_sets[1].offset = m.shards[0].data_sets[0].offset;
       });
     },
     {kShard0, "overlaps"}},
    {"RangeMissing",
     [](const fs::path& f) {
       edit_manifest(f, [](Manifest& m) {
         m.catalog.tensors.push_back(
             {"ghost", "fp32", DType::Float32, {4}, -1, false, false, 0, {}});
       });
     },
     {"ghost [fp32]", "elements 0 to 4 are missing"}},
    {"TensorTooLarge",
     [](const fs::path& f) {
       edit_manifest(f, [](Manifest& m) { m.catalog.tensors[1].shape = {64, 33}; });
     },
     {"wte.weight [exp_avg]", "missing"}},
    {"TensorDtypeChanged",
     [](const fs::path& f) {
       edit_manifest(f, [](Manifest& m) { m.catalog.tensors[0].dtype = DType::Int32; });
     },
     {"manifest.json"}},
};

INSTANTIATE_TEST_SUITE_P(All, Damaged, testing::ValuesIn(kDamages),
                         [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace unishard
