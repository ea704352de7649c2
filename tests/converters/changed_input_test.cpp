// A checkpoint that its program writes again while it is read.
#include "unishard/converters/registry.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "containers/torch_file.hpp"
#include "temp_dir.hpp"
#include "torch_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>

namespace unishard::converters {
namespace {

namespace fs = std::filesystem;

/// A run of one parameter with its moments.
std::unique_ptr<Source> example(const Path& folder) {
  const Json state = {{"a", {{"exp_avg", tensor("m")}, {"exp_avg_sq", tensor("v")}, {"step", 2}}}};
  const Json groups = Json::array({{{"lr", 0.1}, {"params", Json::array({"a"})}}});
  save_torch(folder / "a.pt",
             {{"model", {{"a", tensor("a")}}},
              {"optimizer", {{"state", state}, {"param_groups", groups}}}},
             {{"a", {DType::Float32, {2}, {1, 2}}},
              {"m", {DType::Float32, {2}, {3, 4}}},
              {"v", {DType::Float32, {2}, {5, 6}}}});
  return open_source(posix_storage(), folder / "a.pt");
}

Path write_as(const std::string& format, const Source& source, const Path& folder) {
  const bool is_file = format_entry(format).shape == OutputShape::File ||
                       format_entry(format).shape == OutputShape::FileOrFolder;
  const std::string suffix = format == "torch" ? "pt" : format;
  const Path path = is_file ? folder / ("b." + suffix) : folder / format;
  const auto sink =
      make_sink(posix_storage(), {.format = format, .path = path, .tag = "t"}, source.catalog());
  CopyPlan plan{.source = &source, .target = &source.catalog(), .tensor_map = {}};
  for (std::size_t i = 0; i < source.catalog().tensors.size(); ++i) plan.tensor_map.push_back(i);
  copy(plan, *sink, {});
  sink->commit();
  return path;
}

/// Reads everything, and returns the code of the error in the end.
std::optional<ErrorCode> read_through(const Source& source) {
  for (std::size_t t = 0; t < source.catalog().tensors.size(); ++t) {
    const TensorInfo& tensor = source.catalog().tensors[t];
    std::vector<std::byte> bytes(tensor.elements() * size_of(tensor.dtype));
    source.read(t, {0, tensor.elements()}, bytes);
  }
  try {
    source.verify_reads({});
  } catch (const Error& error) {
    return error.code();
  }
  return std::nullopt;
}

std::vector<Path> files_below(const Path& path) {
  if (fs::is_regular_file(path)) return {path};
  std::vector<Path> files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

/// As if its program had written the file now.
void touch(const Path& file) {
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::milliseconds(10));
}

TEST(ChangedInput, IsAnErrorInEveryFormat) {
  for (const std::string format : {"dcp", "torch", "trainer", "accelerate", "safetensors", "hdf5",
                                   "deepspeed", "deepspeed-universal"}) {
    const test::TempDir folder;
    const Path path = write_as(format, *example(folder.path()), folder.path());
    EXPECT_EQ(read_through(*open_source(posix_storage(), path)), std::nullopt) << format;

    const auto source = open_source(posix_storage(), path);
    for (const Path& file : files_below(path)) touch(file);
    EXPECT_EQ(read_through(*source), ErrorCode::Busy) << format;
  }
}

TEST(ChangedInput, IsAFileThatAnotherHasReplaced) {
  const test::TempDir folder;
  const auto source = example(folder.path());
  fs::copy_file(folder.path() / "a.pt", folder.path() / "new.pt");
  touch(folder.path() / "new.pt");
  fs::rename(folder.path() / "new.pt", folder.path() / "a.pt");
  EXPECT_EQ(read_through(*source), ErrorCode::Busy);
}

TEST(ChangedInput, IsNoneWhenOnlyLatestMoves) {
  const test::TempDir folder;
  const Path run = write_as("deepspeed", *example(folder.path()), folder.path());
  const auto source = open_source(posix_storage(), run);
  touch(run / "latest");
  EXPECT_EQ(read_through(*source), std::nullopt);
}

TEST(ChangedInput, IsNoneWhenTheRunRemovesIt) {
  const test::TempDir folder;
  const auto source = example(folder.path());
  read_through(*source);
  fs::remove(folder.path() / "a.pt");
  EXPECT_EQ(read_through(*source), std::nullopt);
}

}  // namespace
}  // namespace unishard::converters
