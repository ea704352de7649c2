#pragma once
// The shared fixtures: real checkpoints, which are outside the repository and may be missing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

namespace unishard::test {

inline std::filesystem::path fixtures() {
  const char* named = std::getenv("UNISHARD_FIXTURES");
  return named != nullptr ? named : UNISHARD_TEST_DATA "/../../shared/fixtures";
}

/// Returns the folders of one kind of fixtures ("torch", "deepspeed", ...) that have a case.json,
/// ordered by name. Fewer than `least` fail the test.
inline std::vector<std::filesystem::path> fixture_cases(std::string_view kind, std::size_t least) {
  std::vector<std::filesystem::path> cases;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures() / kind)) {
    if (std::filesystem::exists(entry.path() / "case.json")) cases.push_back(entry.path());
  }
  std::ranges::sort(cases);
  EXPECT_GE(cases.size(), least) << (fixtures() / kind) << " holds fewer cases than before";
  return cases;
}

/// Copies a folder; returns `to`, which a test may change even where it must not change `from`.
inline std::filesystem::path copy_folder(const std::filesystem::path& from,
                                         const std::filesystem::path& to) {
  namespace fs = std::filesystem;
  fs::copy(from, to, fs::copy_options::recursive);
  const auto make_writable = [](const fs::path& path) {
    fs::permissions(path, fs::perms::owner_write, fs::perm_options::add);
  };
  make_writable(to);
  for (const auto& entry : fs::recursive_directory_iterator(to)) {
    if (!entry.is_symlink()) make_writable(entry.path());
  }
  return to;
}

}  // namespace unishard::test

#define SKIP_WITHOUT_FIXTURES()                                                           \
  if (!std::filesystem::exists(unishard::test::fixtures() / "safetensors" / "README.md")) \
  GTEST_SKIP() << "no fixtures at " << unishard::test::fixtures() << " (UNISHARD_FIXTURES)"
