// Checksums of an input that are compared while it is read, and inputs that are odd but readable.
#include "unishard/converters/registry.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "containers/entry_checksum.hpp"
#include "expect.hpp"
#include "fixtures.hpp"
#include "make_checkpoint.hpp"
#include "read_source.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <zlib.h>

#include <algorithm>
#include <functional>
#include <random>
#include <thread>

namespace unishard::converters {
namespace {

using test::error_of;
using test::Fails;
using test::flip_bits;
using test::read_file;
using test::TempDir;
using test::thrown_by;
using test::write_file;
using testing::Contains;
using testing::HasSubstr;
using torch::EntryChecksum;
using Verdict = EntryChecksum::Verdict;

std::vector<std::byte> noise(std::size_t bytes) {
  std::mt19937_64 random(11);
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

std::uint32_t crc_of(std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

TEST(EntryChecksum, PartsInAnyOrderThatOverlapGiveTheVerdictOfTheWhole) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::byte> bytes = noise(1 + random() % 5000);
    const std::uint32_t crc = crc_of(bytes);
    const bool is_damaged = round % 2 == 1;
    if (is_damaged) bytes[random() % bytes.size()] ^= std::byte{4};
    EntryChecksum checksum(bytes.size(), crc);
    EXPECT_FALSE(checksum.is_touched());
    for (int part = 0; part < 20; ++part) {
      const std::size_t begin = random() % bytes.size();
      const std::size_t count = 1 + random() % (bytes.size() - begin);
      checksum.add(begin, std::span(bytes).subspan(begin, count));
    }
    for (const auto& gap : checksum.missing())
      checksum.add(gap.begin, std::span(bytes).subspan(gap.begin, gap.end - gap.begin));
    EXPECT_EQ(checksum.verdict(), is_damaged ? Verdict::Wrong : Verdict::Right) << round;
    EXPECT_TRUE(checksum.missing().empty());
  }
}

TEST(EntryChecksum, ThreadsThatReadTheSameBytesDoNotConfuseIt) {
  const std::vector<std::byte> bytes = noise(300'000);
  for (int round = 0; round < 20; ++round) {
    EntryChecksum checksum(bytes.size(), crc_of(bytes));
    {
      std::vector<std::jthread> readers;
      for (unsigned seed = 0; seed < 4; ++seed) {
        readers.emplace_back([&, seed] {
          std::mt19937_64 random(seed);
          for (int i = 0; i < 300; ++i) {
            const std::size_t begin = random() % bytes.size();
            const std::size_t count = std::min<std::size_t>(random() % 5000, bytes.size() - begin);
            checksum.add(begin, std::span(bytes).subspan(begin, count));
          }
        });
      }
    }
    for (const auto& gap : checksum.missing())
      checksum.add(gap.begin, std::span(bytes).subspan(gap.begin, gap.end - gap.begin));
    EXPECT_EQ(checksum.verdict(), Verdict::Right);
  }
}

TEST(EntryChecksum, PartsOfOtherProcessesCompleteIt) {
  const std::vector<std::byte> bytes = noise(10'000);
  EntryChecksum one(bytes.size(), crc_of(bytes)), other(bytes.size(), crc_of(bytes));
  one.add(0, std::span(bytes).first(std::size_t{4000}));
  other.add(4000, std::span(bytes).subspan(4000));
  other.add(2000, std::span(bytes).subspan(2000, std::size_t{10}));
  for (const auto& part : other.parts()) one.adopt(part);
  EXPECT_EQ(one.verdict(), Verdict::Right);
}

TEST(EntryChecksum, MemoryIsBoundedAndWhatWasGivenUpIsReadAgain) {
  const std::vector<std::byte> bytes = noise(100'000);
  EntryChecksum checksum(bytes.size(), crc_of(bytes));
  for (std::size_t at = 0; at < bytes.size(); at += 2)
    checksum.add(at, std::span(bytes).subspan(at, std::size_t{1}));
  EXPECT_LE(checksum.parts().size(), 64u);
  EXPECT_EQ(checksum.verdict(), Verdict::Open);
  for (const auto& gap : checksum.missing())
    checksum.add(gap.begin, std::span(bytes).subspan(gap.begin, gap.end - gap.begin));
  EXPECT_EQ(checksum.verdict(), Verdict::Right);
}

TEST(EntryChecksum, IgnoredOnesSayNothing) {
  const std::vector<std::byte> bytes = noise(10);
  EntryChecksum checksum(bytes.size(), ~crc_of(bytes));
  checksum.ignore();
  EXPECT_EQ(checksum.add(0, bytes), Verdict::Ignored);
  EXPECT_TRUE(checksum.missing().empty());
}

TensorInfo weight(const std::string& name, Shape shape) {
  TensorInfo tensor;
  tensor.fqn = name;
  tensor.state = state::kWeights;
  tensor.dtype = DType::Float32;
  tensor.shape = std::move(shape);
  return tensor;
}

/// A file of torch.save whose object is `object`, with the bytes of example_bytes().
void write_torch(const Path& path, const std::vector<std::string>& names, Json object) {
  Catalog catalog;
  for (const std::string& name : names) catalog.tensors.push_back(weight(name, {40}));
  catalog.client_state = {{"object", std::move(object)}};
  const auto sink = make_torch_sink(posix_storage(), path, catalog, {});
  for (std::size_t i = 0; i < sink->fragments().size(); ++i) {
    const Fragment& fragment = sink->fragments()[i];
    sink->write(i, fragment.range,
                test::example_bytes(catalog, fragment.tensor, 1, fragment.range));
  }
  sink->commit();
}

TEST(OddTorchFiles, TwoTensorsOfOnePathAreBothRead) {
  const TempDir temp;
  const Path path = temp.path() / "x.pt";
  write_torch(path, {"first", "second", "third"},
              {{"a.b", {{"$tensor", "first"}}},
               {"a", {{"b", {{"$tensor", "second"}}}}},
               {"c", {{"$tensor", "third"}}}});
  const auto source = open_source(posix_storage(), path);
  std::vector<std::string> names;
  for (const TensorInfo& tensor : source->catalog().tensors) names.push_back(tensor.fqn);
  EXPECT_THAT(names, testing::ElementsAre("a.b", "a.b#2", "c"));
  EXPECT_THAT(notes_of(*source), Contains(HasSubstr("a.b#2")));
  Catalog expected;
  for (const char* name : {"first", "second", "third"})
    expected.tensors.push_back(weight(name, {40}));
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(read_all(*source, i), test::example_bytes(expected, i, 1));
  // The object around them finds its way back.
  EXPECT_EQ(source->catalog().client_state["object"]["a"]["b"]["$tensor"], "a.b#2");
}

TEST(OddTorchFiles, AZipBehindForeignBytesIsRead) {
  const TempDir temp;
  const Path whole = temp.path() / "x.pt", behind = temp.path() / "behind.pt";
  write_torch(whole, {"w"}, {{"w", {{"$tensor", "w"}}}});
  write_file(behind, "sixteen bytes..." + read_file(whole));
  EXPECT_EQ(probe(posix_storage(), behind).format, "torch");
  const auto source = open_source(posix_storage(), behind);
  EXPECT_EQ(read_all(*source, 0), read_all(*open_source(posix_storage(), whole), 0));
  EXPECT_EQ(source->check({}), 1u);
  write_file(temp.path() / "other", std::string(5000, 'x'));
  EXPECT_EQ(probe(posix_storage(), temp.path() / "other").format, "");
}

TEST(OddTorchFiles, TheFixtureBehindForeignBytesIsRead) {
  SKIP_WITHOUT_FIXTURES();
  const Path folder = test::fixtures() / "torch" / "zip_roots";
  const auto source = open_source(posix_storage(), folder / "checkpoint" / "prefixed.pt");
  const auto expected = open_source(posix_storage(), folder / "expected.safetensors");
  EXPECT_EQ(read_all(*source, 0), read_all(*expected, 0));
}

/// Arrays in one another.
Json nested(unsigned levels) {
  Json value = Json::array();
  for (unsigned i = 1; i < levels; ++i) value = Json::array({std::move(value)});
  return value;
}

TEST(DeepStates, TheLimitIsThatOfReadingBack) {
  Catalog catalog = test::example_catalog({});
  for (const unsigned levels : {61u, 62u, 63u, 64u, 200u}) {
    catalog.client_state = {{"history", nested(levels)}};
    const auto refused = thrown_by([&] {
      parse_json(Json{{"client_state", catalog.client_state}}.dump(), "manifest");
    });
    EXPECT_EQ(unreadable_parts(catalog).empty(), !refused) << levels;
  }
}

TEST(DeepStates, AreRefusedByNameBeforeAnythingIsWritten) {
  const TempDir temp;
  Catalog catalog = test::example_catalog({});
  catalog.client_state = {{"fine", 1}, {"history", nested(100)}};
  EXPECT_THAT(
      error_of([&] { make_native_sink(posix_storage(), temp.path() / "out", "tag", catalog); }),
      Fails(ErrorCode::InvalidArgument, "client_state.history", "text"));
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "out" / "tag"));
}

TEST(DeepStates, OfForeignFilesAreLeftOutWithANote) {
  const TempDir temp;
  const Path path = temp.path() / "x.pt";
  write_torch(path, {"w"}, {{"w", {{"$tensor", "w"}}}, {"deep", nested(80)}});
  const auto source = open_source(posix_storage(), path);
  ASSERT_EQ(source->catalog().tensors.size(), 1u);
  EXPECT_THAT(notes_of(*source), Contains(HasSubstr("nested")));
  EXPECT_TRUE(unreadable_parts(source->catalog()).empty());
}

/// A chunked data set of 64 x 64 float32 that passes fletcher32.
void write_fletcher32(const Path& path, const std::vector<float>& values) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t dims[] = {64, 64}, chunk[] = {16, 64};
  const hid_t space = H5Screate_simple(2, dims, nullptr);
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(creation, 2, chunk);
  H5Pset_fletcher32(creation);
  const hid_t set =
      H5Dcreate2(file, "w", H5T_IEEE_F32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  ASSERT_GE(H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  H5Dclose(set);
  H5Pclose(creation);
  H5Sclose(space);
  H5Fclose(file);
}

TEST(Hdf5Checksums, Fletcher32IsComparedUnlessItIsIgnored) {
  const TempDir temp;
  const Path path = temp.path() / "x.h5";
  std::vector<float> values(64 * 64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.37f;
  write_fletcher32(path, values);
  {
    const auto source = open_source(posix_storage(), path);
    read_all(*source, 0);
    const InputCheck check = source->verify_reads({});
    EXPECT_EQ(check.covered_bytes, values.size() * sizeof(float));
    EXPECT_EQ(check.uncovered_bytes, 0u);
  }
  const std::string part(reinterpret_cast<const char*>(values.data() + 2000), 64);
  const std::size_t at = read_file(path).find(part);
  ASSERT_NE(at, std::string::npos);
  flip_bits(path, at + 9);
  EXPECT_THAT(error_of([&] { read_all(*open_source(posix_storage(), path), 0); }),
              Fails(ErrorCode::Corrupt, "x.h5"));
  const auto source = open_source(posix_storage(), path);
  EXPECT_TRUE(source->ignore_checksums());
  read_all(*source, 0);
  EXPECT_EQ(source->verify_reads({}).covered_bytes, 0u);
}

}  // namespace
}  // namespace unishard::converters
