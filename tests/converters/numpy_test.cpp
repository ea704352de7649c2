// Files as numpy and other writers make them, byte by byte; tests/interop/numpy_exchange.py asks
// numpy itself.
#include "unishard/converters/registry.hpp"
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/memory.hpp"

#include "containers/inflated_file.hpp"
#include "expect.hpp"
#include "formats/numpy/array_header.hpp"
#include "memory_storage.hpp"
#include "mutators.hpp"
#include "read_source.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <numeric>
#include <random>
#include <thread>

namespace unishard::converters {
namespace {

using fuzz::zip_of;
using fuzz::ZipMethod;
using test::error_of;
using test::Fails;
using test::TempDir;
using test::write_file;
using testing::ElementsAre;
using testing::HasSubstr;

/// An array as numpy.save writes it, with a header of any version.
std::string array_of(const std::string& dict, const std::string& data, char version = 1) {
  std::string text = dict;
  const std::size_t fixed = version == 1 ? 10 : 12;
  while ((fixed + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string out("\x93NUMPY", 6);
  out += {version, '\0'};
  for (std::size_t i = 0; i < fixed - 8; ++i)
    out += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return out + text + data;
}

std::string header(const std::string& descr, const std::string& shape,
                   const std::string& fortran = "False") {
  return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}", descr, fortran,
                     shape);
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class NpyFile : public testing::Test {
 protected:
  std::unique_ptr<Source> open(const std::string& bytes, const std::string& name = "x.npy") {
    write_file(temp_.path() / name, bytes);
    return open_source(posix_storage(), temp_.path() / name);
  }
  Error refusal(const std::string& bytes, const std::string& name = "x.npy") {
    return error_of([&] { open(bytes, name); });
  }
  const TempDir temp_;
};

TEST_F(NpyFile, IsOneTensorWithTheNameOfTheFile) {
  const std::string data = bytes_of<float>({1, 2, 3, 4, 5, 6});
  for (const char version : {'\1', '\2', '\3'}) {
    const auto source = open(array_of(header("<f4", "(2, 3)"), data, version), "wte.weight.npy");
    ASSERT_EQ(source->catalog().tensors.size(), 1u);
    EXPECT_EQ(source->catalog().tensors[0].fqn, "wte.weight");
    EXPECT_EQ(source->catalog().tensors[0].shape, (Shape{2, 3}));
    EXPECT_EQ(text_of(read_all(*source, 0)), data);
    EXPECT_EQ(source->verify_reads({}).uncovered_bytes, data.size());
  }
}

TEST_F(NpyFile, HeadersOfOldAndOtherWritersAreRead) {
  const std::string data = bytes_of<std::int16_t>({7, 8, 9});
  for (const std::string dict : {"{'descr': '<i2', 'fortran_order': False, 'shape': (3,)}",
                                 "{'shape': (3L,), 'fortran_order': False, 'descr': u'<i2'}",
                                 "{\"descr\":\"<i2\",\"fortran_order\":False,\"shape\":(3,)}"}) {
    EXPECT_EQ(text_of(read_all(*open(array_of(dict, data)), 0)), data) << dict;
  }
}

TEST_F(NpyFile, FortranOrderIsReadInRowsFromAnyRange) {
  constexpr std::uint64_t kRows = 37, kColumns = 21, kDeep = 3;
  std::vector<std::uint32_t> row_major(kRows * kColumns * kDeep), column_major(row_major.size());
  std::iota(row_major.begin(), row_major.end(), 1u);
  for (std::uint64_t i = 0; i < row_major.size(); ++i) {
    const std::uint64_t k = i % kDeep, c = i / kDeep % kColumns, r = i / kDeep / kColumns;
    column_major[r + kRows * (c + kColumns * k)] = row_major[i];
  }
  const auto source =
      open(array_of(header("<u4", fmt::format("({}, {}, {})", kRows, kColumns, kDeep), "True"),
                    bytes_of(column_major)));
  EXPECT_EQ(text_of(read_all(*source, 0)), bytes_of(row_major));
  std::mt19937_64 random(5);
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t begin = random() % row_major.size();
    const std::uint64_t end = begin + random() % (row_major.size() - begin + 1);
    std::vector<std::uint32_t> some(end - begin);
    source->read(0, {begin, end}, std::as_writable_bytes(std::span(some)));
    const auto first = row_major.begin() + static_cast<std::ptrdiff_t>(begin);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), first)) << begin << " to " << end;
  }
}

TEST_F(NpyFile, BigEndianElementsAreTurned) {
  const auto source =
      open(array_of(header(">c8", "(1,)"), std::string("\x3f\x80\0\0\x40\0\0\0", 8)));
  EXPECT_EQ(source->catalog().tensors[0].dtype, DType::Complex64);
  EXPECT_EQ(text_of(read_all(*source, 0)), bytes_of<float>({1, 2}));
}

TEST_F(NpyFile, TypesAreWrittenAsNumpyWritesThem) {
  const std::map<DType, std::string> names = {
      {DType::Float64, "<f8"},    {DType::Float32, "<f4"},    {DType::Float16, "<f2"},
      {DType::BFloat16, "<V2"},   {DType::Float8E4M3, "|V1"}, {DType::Float8E5M2, "|V1"},
      {DType::Int64, "<i8"},      {DType::Int8, "|i1"},       {DType::UInt16, "<u2"},
      {DType::UInt8, "|u1"},      {DType::Bool, "|b1"},       {DType::Complex64, "<c8"},
      {DType::Complex128, "<c16"}};
  for (const auto& [dtype, name] : names) {
    const std::string header = numpy::encode_header(dtype, {3});
    EXPECT_THAT(header,
                HasSubstr("'descr': '" + name + "', 'fortran_order': False, 'shape': (3,)"));
    EXPECT_EQ(header.size() % 64, 0u);
  }
}

TEST_F(NpyFile, TypesOfMlDtypesAreWhatNumpyMakesOfThem) {
  const auto dtype = [&](const char* descr, const std::string& data) {
    return open(array_of(header(descr, "(1,)"), data))->catalog().tensors[0].dtype;
  };
  EXPECT_EQ(dtype("<V2", "ab"), DType::BFloat16);
  EXPECT_EQ(dtype("|V2", "ab"), DType::BFloat16);
  EXPECT_EQ(dtype("bfloat16", "ab"), DType::BFloat16);
  EXPECT_EQ(dtype("<f1", "a"), DType::Float8E5M2);
  const auto raw = open(array_of(header("<V1", "(1,)"), "a"));
  EXPECT_EQ(raw->catalog().tensors[0].dtype, DType::UInt8);
  EXPECT_THAT(notes_of(*raw), ElementsAre(HasSubstr("did not record")));
}

TEST_F(NpyFile, ObjectsAndOtherThingsAreRefusedByName) {
  const std::string pickle = "\x80\x04N.";
  EXPECT_THAT(refusal(array_of(header("|O", "(1,)"), pickle)),
              Fails(ErrorCode::Unsupported, "x.npy", "numeric"));
  EXPECT_THAT(refusal(array_of(header("|O", "(1,)"), pickle)).what(),
              HasSubstr("a pickle, which is never executed"));
  EXPECT_THAT(refusal(array_of(header("<U5", "(1,)"), "")), Fails(ErrorCode::Unsupported, "text"));
  EXPECT_THAT(refusal(array_of(header("<M8[ns]", "(1,)"), "")),
              Fails(ErrorCode::Unsupported, "times"));
  EXPECT_THAT(refusal(array_of(header("<f16", "(1,)"), "")), Fails(ErrorCode::Unsupported, "<f16"));
  const std::string record =
      "{'descr': [('x', '<i4'), ('y', [('z', '<f8')], (2,))], 'fortran_order': False, 'shape': "
      "(0,)}";
  EXPECT_THAT(refusal(array_of(record, "")), Fails(ErrorCode::Unsupported, "records"));
  EXPECT_THAT(refusal(array_of(header("<f4", "(0,)"), "", 4)),
              Fails(ErrorCode::Unsupported, "version 4.0"));
}

TEST_F(NpyFile, HostileHeadersAreDamage) {
  const std::string data(8, 'x');
  for (const std::string dict :
       {"", "{", "{}", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': 1, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} import os",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': [[[[[[[[", "{'descr': '<f4"}) {
    EXPECT_THAT(refusal(array_of(dict, data)), Fails(ErrorCode::Corrupt, "x.npy")) << dict;
  }
  std::string dimensions = "(";
  for (int i = 0; i < 65; ++i) dimensions += "1, ";
  EXPECT_THAT(refusal(array_of(header("<f4", dimensions + ")"), data)), Fails(ErrorCode::Corrupt));
  std::string huge = array_of(header("<f4", "(2,)"), data, 2);
  huge[11] = '\x7f';  // a header of 2 GiB
  EXPECT_THAT(refusal(huge), Fails(ErrorCode::Corrupt, "claims"));
}

TEST_F(NpyFile, WhatIsBehindTheArrayIsNoted) {
  const auto source = open(array_of(header("<f4", "(1,)"), std::string(10, 'x')));
  EXPECT_THAT(notes_of(*source), ElementsAre(HasSubstr("6 bytes behind the array")));
}

class NpzFile : public NpyFile {
 protected:
  std::unique_ptr<Source> open(const fuzz::ZipFiles& files, ZipMethod method = ZipMethod::Stored) {
    return NpyFile::open(zip_of(files, method), "x.npz");
  }
};

TEST_F(NpzFile, StoredAndDeflatedEntriesAreCheckedAgainstTheirCrc) {
  std::vector<std::uint64_t> values(100'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i / 3;
  const std::string data = bytes_of(values);
  const fuzz::ZipFiles files = {
      {"a/b.npy", array_of(header("<u8", "(100000,)"), data)},
      {"empty.npy", array_of(header("<f4", "(0, 3)"), "")},
  };
  for (const ZipMethod method : {ZipMethod::Stored, ZipMethod::Deflated}) {
    const auto source = open(files, method);
    ASSERT_EQ(source->catalog().tensors.size(), 2u);
    EXPECT_EQ(source->catalog().tensors[0].fqn, "a/b");
    EXPECT_EQ(text_of(read_all(*source, 0)), data);
    EXPECT_EQ(source->verify_reads({}).covered_bytes, data.size());
    EXPECT_EQ(source->check({}), 1u) << "that of no elements is compared when it is opened";
  }
  std::string damaged = zip_of(files);
  damaged[damaged.size() / 2] ^= '\x10';
  const auto source = NpyFile::open(damaged, "damaged.npz");
  EXPECT_THAT(error_of([&] { read_all(*source, 0); }), Fails(ErrorCode::Corrupt, "a/b"));
}

TEST_F(NpzFile, ADamagedHeaderOfAnArrayIsNoticedByTheChecksumOfItsElements) {
  const std::string data = bytes_of<float>({1, 2, 3, 4, 5, 6});
  std::string zip = zip_of({{"a.npy", array_of(header("<f4", "(2, 3)"), data)}});
  const std::size_t shape = zip.find("(2, 3)");
  zip[shape + 1] = '1';  // a valid header of fewer elements
  const auto source = NpyFile::open(zip, "x.npz");
  EXPECT_THAT(error_of([&] {
                read_all(*source, 0);
                source->verify_reads({});
              }),
              Fails(ErrorCode::Corrupt, "CRC-32"));
}

TEST_F(NpzFile, WhatIsNoTensorIsNamedAndTheRestIsRead) {
  const std::string data = bytes_of<float>({1, 2});
  const auto source = open({{"w.npy", array_of(header("<f4", "(2,)"), data)},
                            {"labels.npy", array_of(header("|O", "(1,)"), "\x80\x04N.")},
                            {"readme.txt", "text"}});
  ASSERT_EQ(source->catalog().tensors.size(), 1u);
  EXPECT_THAT(notes_of(*source), ElementsAre(HasSubstr("labels"), HasSubstr("readme.txt")));
}

TEST_F(NpzFile, AnArrayOfOneOfOurOwnNamesIsNotLostSilently) {
  const std::string data = bytes_of<float>({1, 2});
  const auto source = open({{"w.npy", array_of(header("<f4", "(2,)"), data)},
                            {"unishard.dtypes.npy", array_of(header("|u1", "(2,)"), "{}")}});
  ASSERT_EQ(source->catalog().tensors.size(), 1u);
  EXPECT_THAT(notes_of(*source), ElementsAre(HasSubstr("unishard.dtypes")));
}

/// Counts the requests to go on, and stops at one of them.
class CountsLooks final : public Observer {
 public:
  explicit CountsLooks(int stop_at = 0) : stop_at_(stop_at) {}
  void advance(std::uint64_t) override {
    if (++looks_ == stop_at_) raise(ErrorCode::Cancelled, "stopped");
  }
  void begin(std::string_view, std::uint64_t) override {}
  void end() override {}
  int looks() const { return looks_; }

 private:
  std::atomic<int> looks_ = 0;
  const int stop_at_;
};

class DescriptionLimit {
 public:
  explicit DescriptionLimit(std::uint64_t bytes) { set_description_limit(bytes); }
  ~DescriptionLimit() { set_description_limit(before_); }
  DescriptionLimit(const DescriptionLimit&) = delete;
  DescriptionLimit& operator=(const DescriptionLimit&) = delete;

 private:
  const std::uint64_t before_ = description_limit();
};

TEST_F(NpzFile, ALargeArrayInFortransOrderIsCheckedInOnePassAndEachReadCanBeStopped) {
  const DescriptionLimit limit(std::uint64_t{16} << 20);  // a quarter of it may be held
  constexpr std::uint64_t kBytes = std::uint64_t{16} << 20, kRows = 1024;
  const std::string entry =
      array_of(header("<f4", fmt::format("({}, {})", kRows, kBytes / kRows / 4), "True"),
               std::string(kBytes, 'a'));
  const auto source = NpyFile::open(zip_of({{"w.npy", entry}}, ZipMethod::Deflated), "x.npz");
  EXPECT_FALSE(source->is_in_order(0));
  CountsLooks calm;
  TransferOptions options{.threads = 1, .buffer_bytes = 1 << 20, .observer = &calm};
  EXPECT_EQ(source->check(options), 1u);
  EXPECT_LT(calm.looks(), 64) << "a pass has 4 steps of the decoder and 16 buffers";
  CountsLooks stops(3);
  options.observer = &stops;
  std::vector<std::byte> all(1 << 20);
  EXPECT_THAT(error_of([&] {
                run_bounded(1, options, [&](std::size_t, std::span<std::byte>) {
                  source->read(0, {0, all.size() / 4}, all);
                  return std::uint64_t{0};
                });
              }),
              Fails(ErrorCode::Cancelled));
  const auto small = NpyFile::open(
      zip_of({{"w.npy", array_of(header("<f4", "(2, 2)", "True"), std::string(16, 'a'))}},
             ZipMethod::Deflated),
      "x.npz");
  EXPECT_TRUE(small->is_in_order(0)) << "it is held in memory";
}

TEST_F(NpzFile, AnArchiveWithoutArraysIsEmpty) {
  const auto source = NpyFile::open(zip_of({}), "x.npz");
  EXPECT_TRUE(source->catalog().tensors.empty());
}

TEST_F(NpzFile, WhatIsNoZipIsDamageNamed) {
  EXPECT_THAT(refusal("nonsense", "x.npz"), Fails(ErrorCode::Corrupt, "x.npz"));
  EXPECT_THAT(refusal("", "x.npz"), Fails(ErrorCode::Corrupt, "x.npz"));
  EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1\n", "x.npz"),
              Fails(ErrorCode::Unsupported, "git lfs pull"));
}

/// One deflated entry whose content is not regular.
class Inflated : public testing::Test {
 protected:
  explicit Inflated(std::size_t bytes = (std::size_t{13} << 20) + 77) {
    std::mt19937_64 random(3);
    content_.resize(bytes);
    for (char& c : content_) c = static_cast<char>('a' + random() % 7);
    storage_.put("zip", zip_of({{"root/x", content_}}, ZipMethod::Deflated));
  }
  torch::Window window() {
    const torch::ZipReader zip(torch::whole_file(storage_, "zip"));
    return torch::content_window(zip, zip.entries().front());
  }
  void expect_range(const torch::Window& window, std::uint64_t begin, std::uint64_t end) const {
    std::string bytes(end - begin, '\0');
    window.read(begin, std::as_writable_bytes(std::span(bytes)));
    EXPECT_TRUE(bytes == content_.substr(begin, end - begin)) << begin << " to " << end;
  }
  std::string content_;
  test::MemoryStorage storage_;
};

TEST_F(Inflated, AnyRangeIsReadInAnyOrder) {
  const torch::Window content = window();
  expect_range(content, 0, content_.size());
  std::mt19937_64 random(4);
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t begin = random() % content_.size();
    expect_range(content, begin,
                 begin + std::min<std::uint64_t>(random() % 100'000, content_.size() - begin));
  }
  expect_range(content, content_.size() - 1, content_.size());
  expect_range(content, 1, 2);
}

TEST_F(Inflated, SeveralThreadsReadParts) {
  const torch::Window content = window();
  std::vector<std::jthread> readers;
  for (std::uint64_t part = 0; part < 4; ++part) {
    readers.emplace_back([&, part] {
      constexpr std::uint64_t kPart = 500'000;
      for (std::uint64_t at = part * kPart; at < content_.size(); at += 4 * kPart)
        expect_range(content, at, std::min<std::uint64_t>(at + kPart, content_.size()));
    });
  }
}

TEST_F(Inflated, ADifferentSizeIsDamage) {
  const torch::ZipReader zip(torch::whole_file(storage_, "zip"));
  const torch::ZipEntry& entry = zip.entries().front();
  const torch::Window stored{zip.window().file, zip.data_offset(entry), entry.stored_bytes};
  for (const std::uint64_t bytes : {entry.bytes - 1, entry.bytes + 1}) {
    const torch::InflatedFile file(stored, bytes);
    std::vector<std::byte> out(bytes);
    EXPECT_THAT(error_of([&] { file.read_at(0, out); }), Fails(ErrorCode::Corrupt, "inflate"));
  }
}

}  // namespace
}  // namespace unishard::converters
