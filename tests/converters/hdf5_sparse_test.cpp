// Data sets that claim more elements than the file holds: HDF5 makes up what was never written.
#include "unishard/converters/registry.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/hdf5_library.hpp"

#include "expect.hpp"
#include "read_source.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace unishard::converters {
namespace {

using test::TempDir;
using testing::AllOf;
using testing::HasSubstr;

struct SparseSet {
  const char* name;
  hsize_t elements;              ///< float32
  std::optional<hsize_t> chunk;  ///< elements; deflated
  hsize_t written = 0;           ///< zeros, from the first element on
};

void write_sets(const Path& path, const std::vector<SparseSet>& sets) {
  const Hdf5Lock lock;
  const Hdf5Handle file(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
  for (const SparseSet& set : sets) {
    const Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    if (set.chunk) {
      ASSERT_GE(H5Pset_chunk(creation, 1, &*set.chunk), 0);
      ASSERT_GE(H5Pset_deflate(creation, 9), 0);
    }
    const Hdf5Handle space(H5Screate_simple(1, &set.elements, nullptr), H5Sclose);
    const Hdf5Handle data(
        H5Dcreate2(file, set.name, H5T_IEEE_F32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT),
        H5Dclose);
    ASSERT_GE(data, 0);
    if (set.written == 0) continue;
    const std::vector<float> zeros(set.written);
    const hsize_t first = 0;
    const Hdf5Handle memory(H5Screate_simple(1, &set.written, nullptr), H5Sclose);
    ASSERT_GE(H5Sselect_hyperslab(space, H5S_SELECT_SET, &first, nullptr, &set.written, nullptr),
              0);
    ASSERT_GE(H5Dwrite(data, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, zeros.data()), 0);
  }
}

void expect_refused(const Path& path, const char* name) {
  EXPECT_THAT(test::error_of([&] { open_source(posix_storage(), path); }),
              test::Fails(ErrorCode::Unsupported, {path.string(), name, "claim"}, "never written"));
}

TEST(Hdf5Sparse, AnUnwrittenDataSetOfManyTerabytesIsRefused) {
  const TempDir temp;
  write_sets(temp.path() / "plain.h5", {{"small", 10, {}}, {"vast", hsize_t{1} << 45, {}}});
  expect_refused(temp.path() / "plain.h5", "\"/vast\"");
  write_sets(temp.path() / "chunked.h5", {{"vast", hsize_t{1} << 45, 1024, 100}});
  expect_refused(temp.path() / "chunked.h5", "\"/vast\"");
}

TEST(Hdf5Sparse, ManyUnwrittenDataSetsAreCountedTogether) {
  const TempDir temp;
  const hsize_t elements = hsize_t{10} << 20;
  write_sets(temp.path() / "x.h5", {{"a", elements, {}}, {"b", elements, {}}});
  expect_refused(temp.path() / "x.h5", "\"/b\"");
}

TEST(Hdf5Sparse, SmallUnwrittenAndWellCompressedDataSetsAreRead) {
  const TempDir temp;
  const hsize_t megabytes = hsize_t{1} << 18;
  write_sets(temp.path() / "x.h5", {{"unwritten", 10 * megabytes, {}},
                                    {"sparse", 10 * megabytes, megabytes, megabytes},
                                    {"zeros", 100 * megabytes, megabytes, 100 * megabytes}});
  const auto source = open_source(posix_storage(), temp.path() / "x.h5");
  ASSERT_EQ(source->catalog().tensors.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::vector<std::byte> bytes = read_all(*source, i);
    EXPECT_EQ(bytes.size(), source->catalog().tensors[i].bytes());
    EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; }));
  }
}

}  // namespace
}  // namespace unishard::converters
