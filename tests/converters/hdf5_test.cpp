// What only HDF5 has; one_file_formats_test.cpp asks what all formats of one file promise.
#include "unishard/converters/registry.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/shard_entry.hpp"

#include "containers/hdf5_worker.hpp"
#include "expect.hpp"
#include "formats/hdf5/hyperslabs.hpp"
#include "formats/hdf5/link_names.hpp"
#include "make_checkpoint.hpp"
#include "read_source.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"
#include "write_example_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <set>
#include <thread>

namespace unishard::converters {
namespace {

using hdf5::link_paths;
using hdf5::name_of_link;
using test::error_of;
using test::Fails;
using test::overwrite;
using test::read_file;
using test::TempDir;
using test::thrown_by;
using test::write_file;
using testing::HasSubstr;
using testing::StrEq;

/// Names whose paths need care, all weights of one float.
Catalog named(const std::vector<std::string>& names) {
  Catalog catalog;
  for (const std::string& name : names)
    catalog.tensors.push_back(weight(name, DType::Float32, {1}));
  return catalog;
}

std::unique_ptr<Source> write(const Path& path, const Catalog& catalog) {
  return write_example_file("hdf5", path, catalog);
}

std::vector<std::string> labels(const Catalog& catalog) {
  std::vector<std::string> labels;
  for (const TensorInfo& tensor : catalog.tensors) labels.push_back(tensor.label());
  return labels;
}

TEST(Hdf5, KeepsNamesThatHdf5CannotHold) {
  const TempDir temp;
  const std::vector<std::string> names = {"a",
                                          "a/b",
                                          "a/b/c",
                                          "groups/of/names",
                                          "dots.stay.dots",
                                          ".",
                                          "..",
                                          "x/./y",
                                          "x/../y",
                                          "/leading",
                                          "trailing/",
                                          "double//slash",
                                          "/",
                                          "unishard.catalog",
                                          "unishard.catalog/x",
                                          "%",
                                          "100%/2",
                                          "unishard.fqn:a%2Fb",
                                          "unishard.fqn:%zz",
                                          "unishard.fqn:",
                                          "tab\tnew\nline",
                                          "\u00e4\u4e16",
                                          " ",
                                          "\"quoted\" \\"};
  const Catalog catalog = named(names);
  const auto source = write(temp.path() / "x.h5", catalog);
  EXPECT_EQ(labels(digested(*source)).size(), names.size());
  EXPECT_EQ(identity(digested(*source)), identity(with_example_digests(catalog)));
  EXPECT_EQ(notes_of(*source), std::vector<std::string>{});
}

TEST(Hdf5, KeepsDeepAndLongNames) {
  const TempDir temp;
  std::string deep = "0";
  for (int i = 1; i < 500; ++i) deep += "/" + std::to_string(i);
  const Catalog catalog =
      named({deep, std::string(4096, 'x'), std::string(4000, '%'), "a/" + std::string(3000, 'y')});
  const auto source = write(temp.path() / "x.h5", catalog);
  EXPECT_EQ(identity(digested(*source)), identity(with_example_digests(catalog)));
}

TEST(Hdf5, TiedNamesAreLinksToOneDataSet) {
  const TempDir temp;
  Catalog catalog = named({"b.weight", "other", "a/b"});
  catalog.aliases = {{"a.weight", "b.weight"}, {"a/b//c", "b.weight"}, {"a", "a/b"}};
  const auto source = write(temp.path() / "x.h5", catalog);
  EXPECT_EQ(labels(source->catalog()), labels(catalog)) << "the main names are not the first ones";
  auto aliases = source->catalog().aliases;
  auto expected = catalog.aliases;
  const auto by_name = [](const Alias& a, const Alias& b) { return a.fqn < b.fqn; };
  std::ranges::sort(aliases, by_name);
  std::ranges::sort(expected, by_name);
  EXPECT_EQ(aliases, expected);
}

TEST(Hdf5Sink, RefusesTwoTensorsOfOneNameAndTooManyDimensions) {
  const TempDir temp;
  const Path path = temp.path() / "x.h5";
  Catalog same = named({"a", "a", "optimizer.state.a.exp_avg"});
  same.tensors[1].state = state::kExpAvg;
  EXPECT_THAT(error_of([&] { make_hdf5_sink(posix_storage(), path, same); }),
              Fails(ErrorCode::InvalidArgument));
  const Catalog many = catalog_of({weight("a", DType::Int8, Shape(33, 1))});
  EXPECT_THAT(error_of([&] { make_hdf5_sink(posix_storage(), path, many); }),
              Fails(ErrorCode::Unsupported));
  EXPECT_TRUE(std::filesystem::is_empty(temp.path()));
  EXPECT_NO_THROW(write(path, catalog_of({weight("a", DType::Int8, Shape(32, 1))})));
}

TEST(Hdf5Source, RecognisesTheSignatureUnderAnyName) {
  const TempDir temp;
  write(temp.path() / "x.h5", named({"a"}));
  std::filesystem::rename(temp.path() / "x.h5", temp.path() / "x.weights");
  EXPECT_EQ(probe(posix_storage(), temp.path() / "x.weights").format, "hdf5");
  write_file(temp.path() / "no.h5", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_EQ(probe(posix_storage(), temp.path() / "no.h5").format, "");
}

TEST(Hdf5Source, ReadsBehindAUserBlock) {
  const TempDir temp;
  const Catalog catalog = named({"a", "b"});
  write(temp.path() / "x.h5", catalog);
  for (const std::size_t block : {512u, 2048u}) {
    const Path path = temp.path() / (std::to_string(block) + ".h5");
    write_file(path, std::string(block, '#') + read_file(temp.path() / "x.h5"));
    const auto source = open_source(posix_storage(), path);
    EXPECT_EQ(identity(digested(*source)), identity(with_example_digests(catalog)));
  }
}

TEST(Hdf5Source, RefusesOneShardOfANativeCheckpoint) {
  const TempDir temp;
  const Path tag = test::write_example(temp.path());
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), tag / shard_file_name(0, 3)); }),
              Fails(ErrorCode::Unsupported, testing::_, "folder"));
}

/// A small file of everything: groups, links, text, types.
std::string small_file(const Path& folder) {
  Catalog catalog =
      catalog_of({weight("g/a", DType::BFloat16, {3, 4}), weight("g/b", DType::Bool, {5}),
                  weight("c", DType::Int64, {}), weight("empty", DType::Float8E4M3, {0})});
  catalog.aliases = {{"tied", "c"}};
  catalog.client_state = {{"x", 1}};
  write(folder / "small.h5", catalog);
  return read_file(folder / "small.h5");
}

/// Opens and reads all of `bytes` as a file. Whatever comes of it but an Error is a failure.
bool is_readable(const Path& path, const std::string& bytes) {
  write_file(path, bytes);
  const auto error = thrown_by([&] {
    const auto source = open_source(posix_storage(), path);
    for (std::size_t i = 0; i < source->catalog().tensors.size(); ++i) {
      std::vector<std::byte> buffer(4096);
      const TensorInfo& tensor = source->catalog().tensors[i];
      const std::uint64_t elements = std::min<std::uint64_t>(tensor.elements(), 256);
      source->read(i, {0, elements}, std::span(buffer).first(elements * size_of(tensor.dtype)));
    }
  });
  if (!error) return true;
  EXPECT_NE(error->code(), ErrorCode::Internal) << error->what();
  EXPECT_THAT(error->what(), HasSubstr(path.filename().string()));
  return false;
}

TEST(Hdf5Source, EveryTruncationIsAnError) {
  const TempDir temp;
  const std::string whole = small_file(temp.path());
  const Path path = temp.path() / "damaged.h5";
  EXPECT_TRUE(is_readable(path, whole));
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 1009)
    EXPECT_FALSE(is_readable(path, whole.substr(0, bytes))) << bytes;
  EXPECT_FALSE(is_readable(path, whole.substr(0, whole.size() - 1)));
}

TEST(Hdf5Source, DamagedBytesAreAnErrorOrReadable) {
  const TempDir temp;
  const std::string whole = small_file(temp.path());
  std::mt19937_64 random(7);
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    if (whole[at] == '\0' && random() % 512 != 0) continue;  // mostly gaps
    if (random() % 3 != 0) continue;
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ static_cast<char>(1 + random() % 255));
    if (!is_readable(temp.path() / "damaged.h5", damaged)) ++refused;
  }
  EXPECT_GT(refused, 20);
}

/// Our files hold nothing that HDF5 would have to convert, so one is changed: the byte order of the
/// type of its only data set, a float32.
TEST(Hdf5Source, ReadsBigEndianElementsFromSeveralThreads) {
  const TempDir temp;
  const Catalog catalog = catalog_of({weight("w", DType::Float32, {30, 7, 2})});
  const Path path = temp.path() / "x.h5";
  write(path, catalog);
  const std::string little("\x11\x20\x1f\0\4\0\0\0", 8);
  const std::size_t at = read_file(path).find(little);
  ASSERT_NE(at, std::string::npos);
  overwrite(path, at + 1, "\x21");
  std::vector<std::byte> expected = test::example_bytes(catalog, 0, 1);
  for (std::size_t i = 0; i < expected.size(); i += 4)
    std::reverse(expected.begin() + static_cast<std::ptrdiff_t>(i),
                 expected.begin() + static_cast<std::ptrdiff_t>(i + 4));
  const auto source = open_source(posix_storage(), path);
  std::vector<std::byte> bytes(expected.size());
  {
    std::vector<std::jthread> readers;
    for (std::uint64_t begin = 0; begin < 420; begin += 60) {
      readers.emplace_back([&, begin] {
        source->read(0, {begin, begin + 60}, std::span(bytes).subspan(4 * begin, std::size_t{240}));
      });
    }
  }
  EXPECT_EQ(bytes, expected);
}

TEST(Hdf5Worker, AnswersEachRequestOrThrows) {
  int calls = 0;  // the child's own
  hdf5::Hdf5Worker process("x", [&](const std::string& request) {
    ++calls;
    if (request == "throw") raise(ErrorCode::NotFound, "why", "what");
    if (request == "count") return std::to_string(calls);
    return request;
  });
  const std::string large(std::size_t{3} << 20, '\0');
  EXPECT_EQ(process.ask(large), large);
  EXPECT_EQ(process.ask(""), "");
  EXPECT_THAT(error_of([&] { process.ask("throw"); }),
              Fails(ErrorCode::NotFound, StrEq("why"), StrEq("what")));
  EXPECT_EQ(process.ask("count"), "4");
  EXPECT_EQ(calls, 0);
}

TEST(Hdf5Worker, ACrashIsAnErrorNamingTheFileThenAndLater) {
  hdf5::Hdf5Worker other("y.h5", [](const std::string& request) { return request; });
  hdf5::Hdf5Worker process("x.h5", [](const std::string&) -> std::string { std::abort(); });
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(error_of([&] { process.ask(""); }), Fails(ErrorCode::Corrupt, "x.h5"));
  }
  EXPECT_EQ(other.ask("z"), "z");
}

TEST(LinkPaths, AreDifferentAndLeadBack) {
  const std::vector<std::string_view> names = {"a", "a/b", "", "b/c", "b", "unishard.fqn:a%2Fb"};
  const auto paths = link_paths(names);
  EXPECT_EQ(paths[0], "a");
  EXPECT_EQ(paths[1], "unishard.fqn:a%2Fb");
  EXPECT_EQ(std::set<std::string>(paths.begin(), paths.end()).size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(name_of_link(paths[i]), names[i]);
  EXPECT_EQ(name_of_link("unishard.fqn:%4"), "unishard.fqn:%4") << "not ours: as it is";
}

TEST(SplitRange, BoxesAreTheRangeInOrder) {
  const Shape shape = {3, 1, 4, 2};
  for (std::uint64_t begin = 0; begin <= 24; ++begin) {
    for (std::uint64_t end = begin; end <= 24; ++end) {
      std::uint64_t next = begin;
      const auto slabs = hdf5::split_range(shape, {begin, end});
      EXPECT_LE(slabs.size(), 7u);
      for (const hdf5::Hyperslab& slab : slabs) {
        std::uint64_t first = 0;
        for (std::size_t i = 0; i < shape.size(); ++i) {
          ASSERT_LE(slab.start[i] + slab.count[i], shape[i]);
          first = first * shape[i] + slab.start[i];
        }
        EXPECT_EQ(first, next);
        next += element_count(slab.count);
      }
      EXPECT_EQ(next, end);
    }
  }
}

}  // namespace
}  // namespace unishard::converters
