// What all formats of one file promise.
#include "unishard/converters/registry.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "read_source.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"
#include "write_example_file.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace unishard::converters {
namespace {

using test::error_of;
using test::Fails;
using test::read_file;
using test::TempDir;
using test::thrown_by;
using test::write_file;
using testing::HasSubstr;

class OneFileFormats : public testing::TestWithParam<std::string> {
 protected:
  Path file(const std::string& stem = "x") const {
    return temp_.path() / fmt::format("{}.{}", stem, GetParam());
  }
  std::unique_ptr<Source> write(const Path& path, const Catalog& catalog) const {
    return write_example_file(GetParam(), path, catalog);
  }
  /// The types that the format has.
  std::vector<DType> types() const {
    const std::set<DType> of_gguf = {DType::Float64,  DType::Float32, DType::Float16,
                                     DType::BFloat16, DType::Int64,   DType::Int32,
                                     DType::Int16,    DType::Int8};
    std::vector<DType> types;
    for (const DTypeInfo& row : dtype_table()) {
      if (GetParam() != "gguf" || of_gguf.contains(row.dtype)) types.push_back(row.dtype);
    }
    return types;
  }
  /// A training state without the tensors of types that the format lacks.
  Catalog training_state(bool bf16) const {
    Catalog catalog = test::example_catalog({.bf16 = bf16});
    const std::vector<DType> known = types();
    std::erase_if(catalog.tensors, [&](const TensorInfo& tensor) {
      return std::ranges::find(known, tensor.dtype) == known.end();
    });
    return catalog;
  }

  const TempDir temp_;
};

TEST_P(OneFileFormats, KeepATrainingStateWithItsIdentity) {
  for (const bool bf16 : {false, true}) {
    const Catalog catalog = training_state(bf16);
    const auto source = write(file(bf16 ? "b" : "a"), catalog);
    const Catalog& read = source->catalog();
    EXPECT_EQ(source->format(), GetParam());
    EXPECT_EQ(notes_of(*source), std::vector<std::string>{});
    EXPECT_EQ(identity(digested(*source)), identity(with_example_digests(catalog)));
    EXPECT_EQ(read.aliases, catalog.aliases);
    EXPECT_EQ(read.step, catalog.step);
    EXPECT_EQ(read.groups, catalog.groups);
    EXPECT_EQ(read.client_state, catalog.client_state);
    EXPECT_EQ(read.scheduler, catalog.scheduler);
    EXPECT_EQ(read.world_size, catalog.world_size);
    ASSERT_EQ(read.tensors.size(), catalog.tensors.size());
    for (std::size_t i = 0; i < read.tensors.size(); ++i) {
      EXPECT_EQ(read.tensors[i].label(), catalog.tensors[i].label()) << "in the catalog's order";
      EXPECT_EQ(read.tensors[i].frozen, catalog.tensors[i].frozen);
      EXPECT_EQ(read.tensors[i].group, catalog.tensors[i].group);
    }
  }
}

TEST_P(OneFileFormats, KeepEveryTypeAndShape) {
  Catalog catalog;
  for (const DType dtype : types()) {
    const std::string name(name_of(dtype));
    catalog.tensors.push_back(weight(name, dtype, {3, 5, 2}));
    catalog.tensors.push_back(weight(name + ".scalar", dtype, {}));
    catalog.tensors.push_back(weight(name + ".empty", dtype, {2, 0, 3}));
    catalog.tensors.push_back(weight(name + ".large", dtype, {1025, 9}));
  }
  const auto source = write(file(), catalog);
  EXPECT_EQ(notes_of(*source), std::vector<std::string>{});
  ASSERT_EQ(source->catalog().tensors.size(), catalog.tensors.size());
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorInfo& tensor = source->catalog().tensors[i];
    EXPECT_EQ(tensor.fqn, catalog.tensors[i].fqn);
    EXPECT_EQ(tensor.dtype, catalog.tensors[i].dtype) << tensor.fqn;
    EXPECT_EQ(tensor.shape, catalog.tensors[i].shape) << tensor.fqn;
    EXPECT_EQ(read_all(*source, i), test::example_bytes(catalog, i, 1)) << tensor.fqn;
  }
}

TEST_P(OneFileFormats, ReadAnyRangeOfElements) {
  const Catalog catalog = catalog_of({weight("w", DType::Int16, {7, 11})});
  const auto source = write(file(), catalog);
  for (std::uint64_t begin = 0; begin <= 77; begin += 7) {
    for (std::uint64_t end = begin; end <= 77; end += 5) {
      std::vector<std::byte> bytes(2 * (end - begin));
      source->read(0, {begin, end}, bytes);
      EXPECT_EQ(bytes, test::example_bytes(catalog, 0, 1, {begin, end}));
    }
  }
}

TEST_P(OneFileFormats, KeepOddNames) {
  const std::vector<std::string> names = {"a",
                                          "a.npy",
                                          "a.npy.npy",
                                          "unishard.fqn:a",
                                          "a/b",
                                          "/leading",
                                          "trailing/",
                                          "double//slash",
                                          "/",
                                          ".",
                                          "..",
                                          "../up",
                                          "back\\slash",
                                          "unishard.catalog",
                                          "unishard.dtypes",
                                          "%",
                                          "unishard.fqn:%zz",
                                          "tab\tnew\nline",
                                          "\u00e4\u4e16",
                                          " ",
                                          "\"quoted\" \\",
                                          std::string(4096, 'x'),
                                          std::string(4000, '%')};
  Catalog catalog;
  for (const std::string& name : names)
    catalog.tensors.push_back(weight(name, DType::Float32, {1}));
  const auto source = write(file(), catalog);
  EXPECT_EQ(identity(digested(*source)), identity(with_example_digests(catalog)));
  EXPECT_EQ(notes_of(*source), std::vector<std::string>{});
}

TEST_P(OneFileFormats, AnEmptyModelIsAFile) {
  EXPECT_TRUE(write(file(), {})->catalog().tensors.empty());
}

TEST_P(OneFileFormats, TheSameInputGivesTheSameBytes) {
  const Catalog catalog = training_state(true);
  write(file("a"), catalog);
  write(file("b"), catalog);
  EXPECT_EQ(read_file(file("a")), read_file(file("b")));
}

TEST_P(OneFileFormats, NothingIsVisibleBeforeCommitAndNothingLeftAfterwards) {
  const Catalog catalog = catalog_of({weight("a", DType::Float32, {5})});
  {
    const auto sink =
        make_sink(posix_storage(), {.format = GetParam(), .path = file(), .tag = {}}, catalog);
    fill_with_example(*sink, catalog);
    EXPECT_FALSE(std::filesystem::exists(file()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(temp_.path()));
}

TEST_P(OneFileFormats, RefuseAnExistingFileAndTwoTensorsOfOneName) {
  write_file(file(), "mine");
  const auto make = [&](const Path& path, const Catalog& catalog) {
    return error_of([&] {
      make_sink(posix_storage(), {.format = GetParam(), .path = path, .tag = {}}, catalog);
    });
  };
  const Catalog one = catalog_of({weight("a", DType::Float32, {5})});
  EXPECT_THAT(make(file(), one), Fails(ErrorCode::AlreadyExists));
  EXPECT_EQ(read_file(file()), "mine");
  Catalog same = catalog_of({weight("a", DType::Float32, {1}), weight("a", DType::Float32, {1}),
                             weight("optimizer.state.a.exp_avg", DType::Float32, {1})});
  same.tensors[1].state = state::kExpAvg;
  EXPECT_THAT(make(file("y"), same), Fails(ErrorCode::InvalidArgument, "two tensors would be"));
}

TEST_P(OneFileFormats, AreRecognisedUnderAnyNameAndHaveNoTags) {
  write(file(), catalog_of({weight("a", DType::Float32, {5})}));
  std::filesystem::rename(file(), temp_.path() / "weights");
  EXPECT_EQ(probe(posix_storage(), temp_.path() / "weights").format, GetParam());
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), temp_.path() / "weights", "tag"); }),
              Fails(ErrorCode::InvalidArgument));
}

/// The catalog and all values, or the error.
std::string content_of(const Path& path) {
  std::string content;
  const auto error = thrown_by([&] {
    const auto source = open_source(posix_storage(), path);
    for (std::size_t i = 0; i < source->catalog().tensors.size(); ++i) {
      const TensorInfo& tensor = source->catalog().tensors[i];
      content += fmt::format("{} {} {} ", tensor.label(), name_of(tensor.dtype),
                             Json(tensor.shape).dump());
      for (const std::byte byte : read_all(*source, i))
        content += fmt::format("{:02x}", std::to_integer<int>(byte));
      content += '\n';
    }
    source->verify_reads({});
    content += source->catalog().client_state.dump();
  });
  if (!error) return content;
  EXPECT_NE(error->code(), ErrorCode::Internal) << error->what();
  EXPECT_THAT(error->what(), HasSubstr(path.filename().string()));
  return "error";
}

/// Each byte is tried; libhdf5 is too slow for it (hdf5_test.cpp tries some).
class SmallFiles : public OneFileFormats {};

TEST_P(SmallFiles, EveryTruncationIsAnError) {
  Catalog catalog =
      catalog_of({weight("a", DType::BFloat16, {3, 4}), weight("b", DType::Float32, {5}),
                  weight("scalar", DType::Int64, {})});
  catalog.client_state = {{"x", 1}};
  write(file(), catalog);
  const std::string whole = read_file(file());
  const std::size_t payload_end = whole.size() - (GetParam() == "gguf" ? 24 : 0);  // padding
  for (std::size_t bytes = 0; bytes < payload_end; ++bytes) {
    write_file(file("cut"), whole.substr(0, bytes));
    EXPECT_EQ(content_of(file("cut")), "error") << bytes << " of " << whole.size();
  }
}

/// npz has checksums: a flipped byte is noticed or changes nothing that is read. GGUF has none:
/// whatever is read is no crash.
TEST_P(SmallFiles, EveryFlippedByteIsAnErrorOrHarmless) {
  Catalog catalog = catalog_of({weight("a", DType::BFloat16, {3, 4}), weight("b", DType::Int8, {5}),
                                weight("empty", DType::Float32, {0})});
  catalog.client_state = {{"x", 1}};
  write(file(), catalog);
  const std::string whole = read_file(file());
  const std::string expected = content_of(file());
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char mask : {'\x01', '\xff'}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ mask);
      write_file(file("damaged"), damaged);
      const std::string content = content_of(file("damaged"));
      refused += content == "error" ? 1 : 0;
      if (GetParam() == "npz" && content != "error") {
        EXPECT_EQ(content, expected) << at;
      }
    }
  }
  EXPECT_GT(refused, 100);
}

constexpr auto kName = [](const auto& format) { return format.param; };
INSTANTIATE_TEST_SUITE_P(Formats, OneFileFormats, testing::Values("npz", "gguf", "hdf5"), kName);
INSTANTIATE_TEST_SUITE_P(Formats, SmallFiles, testing::Values("npz", "gguf"), kName);

}  // namespace
}  // namespace unishard::converters
