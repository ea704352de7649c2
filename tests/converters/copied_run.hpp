#pragma once
// The checkpoints of tests/fixtures' parallel runs, and copies of them to be damaged.
#include "unishard/converters/source.hpp"

#include "expect.hpp"
#include "fixtures.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace unishard::converters {

inline Path parallel_case(const std::string& name) { return test::fixtures() / "parallel" / name; }

inline std::unique_ptr<Source> open_case(const std::string& name) {
  return open_source(posix_storage(), parallel_case(name) / "checkpoint");
}

/// Returns what the maker of a case has told of it.
inline SortedJson about_case(const std::string& name) {
  return parse_sorted_json(test::read_file(parallel_case(name) / "case.json"), "case.json");
}

/// Checks the counts of the run.
inline void expect_counts(const Catalog& catalog, const SortedJson& about) {
  EXPECT_EQ(static_cast<double>(catalog.step), about["optimizer_step"].get<double>());
  EXPECT_EQ(catalog.world_size, about["world_size"]);
  EXPECT_EQ(catalog.stage, about["stage"]);
  EXPECT_EQ(catalog.data_position["global_steps"], about["global_steps"].get<int>());
}

/// A copy of a fixture.
class CopiedRun {
 public:
  explicit CopiedRun(const std::string& name) {
    test::copy_folder(parallel_case(name) / "checkpoint", path());
  }
  Path path() const { return folder_.path() / "checkpoint"; }
  Path file(const std::string& name) const { return path() / "global_step3" / name; }
  std::unique_ptr<Source> open() const { return open_source(posix_storage(), path()); }
  void swap(const std::string& one, const std::string& other) const {
    std::filesystem::rename(file(one), file("swapped"));
    std::filesystem::rename(file(other), file(one));
    std::filesystem::rename(file("swapped"), file(other));
  }
  /// Makes the archive in file `name`, which was written as `other`, one that was written as
  /// `name`. Pre: the names have the same length.
  void rename_archive(const std::string& name, const std::string& other) const {
    const auto stem = [](const std::string& file) { return file.substr(0, file.rfind('.')) + "/"; };
    std::string bytes = test::read_file(file(name));
    const std::string from = stem(other), to = stem(name);
    for (std::size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at + 1))
      bytes.replace(at, from.size(), to);
    test::write_file(file(name), bytes);
  }

 private:
  test::TempDir folder_;
};

}  // namespace unishard::converters
