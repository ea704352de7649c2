// Real torch.save files, read and compared bit by bit with what torch itself reads from them.
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "containers/pickle_writer.hpp"
#include "containers/torch_output.hpp"
#include "expect.hpp"
#include "fixtures.hpp"
#include "formats/dcp/key_layout.hpp"
#include "read_source.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

namespace unishard::converters {
namespace {

using test::fixtures;
using test::read_json;
using test::thrown_by;

/// Tensors by their paths in the file.
std::map<std::string, std::size_t> by_name(const Source& source) {
  const Catalog& catalog = source.catalog();
  std::map<std::string, std::size_t> names;
  if (const Json layout = source.layout(); !layout.is_null()) {
    for (const Json& row : layout["tensors"]) {
      const auto found = std::ranges::find_if(catalog.tensors, [&](const TensorInfo& tensor) {
        return tensor.fqn == row[2] && tensor.state == row[3];
      });
      names[row[0]] = static_cast<std::size_t>(found - catalog.tensors.begin());
    }
    return names;
  }
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) names[catalog.tensors[i].fqn] = i;
  for (const Alias& alias : catalog.aliases) names[alias.fqn] = names.at(alias.target);
  return names;
}

/// Step counters, which are no tensors of the catalog.
std::map<std::string, float> scalars_of(const Source& source) {
  std::map<std::string, float> scalars;
  if (const Json layout = source.layout(); !layout.is_null()) {
    const auto contents = dcp::KeyedContents::match(layout, source.catalog());
    for (const Json& row : layout["constants"])
      scalars[row[0]] = static_cast<float>(
          float_at(DType::Float32, contents->constant(row[0].get<std::string>())->bytes.data()));
  }
  return scalars;
}

/// Number of tensors of `file` that were compared with expected.safetensors.
int compare(const Path& file, const Path& expected_path) {
  const auto source = open_source(posix_storage(), file);
  const auto expected = open_source(posix_storage(), expected_path);
  const auto names = by_name(*source);
  const auto scalars = scalars_of(*source);
  int compared = 0;
  for (const auto& [name, index] : by_name(*expected)) {
    const auto found = names.find(name);
    if (const auto scalar = scalars.find(name); scalar != scalars.end()) {
      float value = 0;
      std::memcpy(&value, read_all(*expected, index).data(), sizeof value);
      EXPECT_EQ(value, scalar->second) << file << ": " << name;
      ++compared;
      continue;
    }
    if (found == names.end()) {
      ADD_FAILURE() << file << ": " << name << " is missing";
      continue;
    }
    const TensorInfo& a = source->catalog().tensors[found->second];
    const TensorInfo& b = expected->catalog().tensors[index];
    EXPECT_EQ(name_of(a.dtype), name_of(b.dtype)) << file << ": " << name;
    EXPECT_EQ(a.shape, b.shape) << file << ": " << name;
    EXPECT_EQ(read_all(*source, found->second), read_all(*expected, index)) << file << ": " << name;
    ++compared;
  }
  return compared;
}

TEST(TorchFixtures, EveryTensorOfEveryFileEqualsWhatTorchReads) {
  SKIP_WITHOUT_FIXTURES();
  // Sorts of tensors that are refused by name: their cases are looked at one by one below.
  const std::set<std::string> elsewhere = {"zip_dtypes_exotic", "zip_quantized", "zip_sparse",
                                           "zip_meta", "legacy_untyped"};
  int cases = 0, files = 0, tensors = 0;
  for (const Path& folder : test::fixture_cases("torch", 90)) {
    const std::string name = folder.filename();
    if (elsewhere.contains(name)) continue;
    const Json description = read_json(folder / "case.json");
    if (!description.contains("files") || name.find("dcp") != std::string::npos ||
        name.find("fsdp") != std::string::npos || name.starts_with("dtensor") ||
        name.starts_with("hf_"))
      continue;
    SCOPED_TRACE(name);
    ++cases;
    for (const auto& [file, about] : description["files"].items()) {
      if (about.value("torch_load_weights_only_False", "ok") != "ok") continue;
      const auto error = thrown_by([&, &file = file] {
        tensors += compare(folder / "checkpoint" / file, folder / "expected.safetensors");
      });
      EXPECT_EQ(error, std::nullopt) << file;
      ++files;
    }
  }
  std::cout << cases << " cases, " << files << " files, " << tensors << " tensors equal\n";
  EXPECT_GE(cases, 34);
  EXPECT_GE(files, 53);
}

TEST(TorchFixtures, ASecondObjectInALegacyFileIsNoted) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir folder;
  const Path file = folder.path() / "two.pt";
  const std::string one = test::read_file(fixtures() / "torch/hostile/legacy_good.pt");
  test::write_file(file, one);
  const auto behind = testing::Contains(testing::HasSubstr("behind the last storage"));
  EXPECT_THAT(open_source(posix_storage(), file)->notes(), testing::Not(behind));
  test::write_file(file, one + one);
  EXPECT_THAT(open_source(posix_storage(), file)->notes(), behind);
}

/// The places in torch's archives that miniz minds and that say nothing here.
TEST(TorchFixtures, WhatTorchsReaderOfArchivesRefusesIsRefused) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir folder;
  const Path file = folder.path() / "train.pt";
  const std::string whole =
      test::read_file(fixtures() / "torch/old_2.6.0_zip_train/checkpoint/train.pt");
  const auto opens = [&](std::size_t at, char bits) {
    std::string bytes = whole;
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ bits);
    test::write_file(file, bytes);
    try {
      return open_source(posix_storage(), file) != nullptr;
    } catch (const Error&) {
      return false;
    }
  };
  EXPECT_TRUE(opens(whole.size() - 1, 0));
  const std::size_t entry = whole.rfind("PK\x01\x02"), end64 = whole.rfind("PK\x06\x06"),
                    locator = whole.rfind("PK\x06\x07");
  ASSERT_NE(entry, whole.npos);
  EXPECT_FALSE(opens(entry + 8, 1 << 5)) << "a patch";
  EXPECT_FALSE(opens(entry + 8, 1 << 6)) << "strongly encrypted";
  EXPECT_FALSE(opens(entry + 9, 1 << 5)) << "masked";
  EXPECT_FALSE(opens(entry + 34, 2)) << "on another disk";
  EXPECT_FALSE(opens(entry + 38, 0x10)) << "a folder";
  ASSERT_NE(end64, whole.npos);
  for (const std::size_t at : {4u, 16u, 20u, 24u}) EXPECT_FALSE(opens(end64 + at, 32)) << at;
  ASSERT_NE(locator, whole.npos);
  EXPECT_FALSE(opens(locator + 16, 1)) << "no disk at all";
  const std::size_t name = whole.find("/version");
  ASSERT_NE(name, whole.npos);
  const std::size_t header = whole.rfind("PK\x03\x04", name);
  for (const std::size_t at : {0u, 26u, 28u}) EXPECT_FALSE(opens(header + at, 4)) << at;
  const std::size_t serial = whole.find(".data/serialization_id");
  ASSERT_NE(serial, whole.npos);
  EXPECT_FALSE(opens(whole.rfind("PK\x03\x04", serial), 4)) << "read by torch only";
}

/// A file of torch before 1.6 has no checksums, and a list of the model's modules.
TEST(TorchFixtures, ANameThatTheListOfModulesContradictsIsNoted) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir folder;
  const Path file = folder.path() / "train.pt";
  const std::string whole =
      test::read_file(fixtures() / "torch/old_2.1.2_legacy/checkpoint/train.pt");
  const auto notes = [&](const std::string& name, const std::string& changed) {
    std::string bytes = whole;
    if (!name.empty()) bytes.replace(bytes.find(name), name.size(), changed);
    test::write_file(file, bytes);
    std::vector<std::string> lines = open_source(posix_storage(), file)->notes_and_remarks();
    std::erase_if(lines, [](const std::string& line) {
      return line.find("the list of modules that torch saved") == std::string::npos;
    });
    return lines;
  };
  using testing::AllOf, testing::ElementsAre, testing::HasSubstr;
  EXPECT_THAT(notes("", ""), testing::IsEmpty());
  EXPECT_THAT(notes("conv.bias", "sonv.bias"),
              ElementsAre(AllOf(HasSubstr("\"sonv.bias\""), HasSubstr("module \"conv\""))));
  EXPECT_THAT(notes("norm.running_mean", "nopm.running_mean"),
              ElementsAre(AllOf(HasSubstr("\"nopm."), HasSubstr("module \"norm\""))));
}

TEST(TorchFile, AStorageThatThePickleDoesNotNameIsNoted) {
  const test::TempDir folder;
  torch::PickleWriter pickle;
  pickle.begin_dict();
  pickle.str("w");
  pickle.tensor(DType::Float32, {2}, "0", 2);
  pickle.end_dict();
  torch::ArchivePlan plan{"lost.pt", "lost", pickle.finish(), {8, 8}};
  torch::TorchOutput output(posix_storage(), folder.path());
  const std::size_t archive = output.add(std::move(plan));
  const std::vector<std::byte> bytes(8);
  for (std::size_t storage : {0u, 1u}) output.write(archive, storage, 0, bytes);
  output.finish();
  EXPECT_THAT(open_source(posix_storage(), folder.path() / "lost.pt")->notes(),
              testing::Contains(testing::HasSubstr("1 storages in the archive are no tensor's")));
}

/// Opens the file, reads every tensor of a sane size and checks every checksum.
void read_everything(const Path& path) {
  constexpr std::uint64_t kSane = 1u << 24;
  const auto source = open_source(posix_storage(), path);
  for (std::size_t i = 0; i < source->catalog().tensors.size(); ++i) {
    if (source->catalog().tensors[i].elements() < kSane) read_all(*source, i);
  }
  source->check({});
}

TEST(TorchFixtures, HostileFilesAreRefusedOrReadSafely) {
  SKIP_WITHOUT_FIXTURES();
  const Path folder = fixtures() / "torch" / "hostile";
  int refused = 0, read = 0;
  const Json manifest = read_json(folder / "manifest.json");
  for (const auto& [name, about] : manifest.items()) {
    if (!std::filesystem::is_regular_file(folder / name)) continue;
    const auto must = about["reader_must"].get<std::string>();
    const bool must_refuse =
        must.starts_with("refuse with an error") || must == "refuse on a full read";
    if (const auto error = test::thrown_by([&] { read_everything(folder / name); })) {
      EXPECT_NE(must, "load") << name << ": " << error->what();
      ++refused;
    } else {
      EXPECT_FALSE(must_refuse) << name << " was read; a reader must " << must;
      ++read;
    }
  }
  std::cout << refused << " refused, " << read << " read safely\n";
  EXPECT_GT(refused, 80);
  EXPECT_GE(refused + read, 119);
}

}  // namespace
}  // namespace unishard::converters
